#include "cli/engine_flags.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "cli/model_store.h"
#include "kvant/kernels/cpu.h"

namespace kvant::cli {
namespace {

// The ggml backends lie in bin/ beside the program.
Result<std::string> ProgramDir() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return Status(StatusCode::kIoError, "cannot find the program's own folder: " + error.message());
  }
  return (program.parent_path() / "bin").string();  // where the build puts them
}

std::string IsaWords() {
  std::string words;
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    words += (words.empty() ? "" : ", ") + std::string(kernels::IsaName(isa));
  }
  return words;
}

}  // namespace

EngineFlags::EngineFlags()
    : threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      isa(kernels::IsaName(kernels::BestIsa())) {}

void AddCpuFlags(CLI::App& command, EngineFlags& flags) {
  AddOption(command, "--threads", flags.threads, "Threads that compute")
      ->check(InRange(1, flags.threads));  // threads of one graph wait for each other: more than cores stand still
  AddOption(command, "--isa", flags.isa, "Instruction set of the kernels; this machine has " + IsaWords());
}

void AddEngineFlags(CLI::App& command, EngineFlags& flags) {
  AddOption(command, "-m,--model", flags.model,
            "Model: a GGUF file, or the name of an installed one (default: SmolLM2-135M-Instruct)");
  AddOption(command, "--models-dir", flags.models_dir,
            "Folder of installed models (default: in the user's data folder)");
  AddCpuFlags(command, flags);
}

void AddKvMemoryFlag(CLI::App& command, uint64_t& megabytes) {
  AddOption(command, "--kv-memory-mb", megabytes,
            "Memory of the KV cache at most, in MiB, the layer that is being computed at fp16 included; 0 is no limit")
      ->check(InRange(uint64_t{0}, uint64_t{1} << 30));
}

uint64_t KvMemoryBytes(uint64_t megabytes) { return megabytes == 0 ? UINT64_MAX : megabytes << 20; }

Result<std::unique_ptr<engine::Backend>> OpenBackend(const EngineFlags& flags) {
  KVANT_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ParseIsa(flags.isa));
  KVANT_ASSIGN_OR_RETURN(const std::string dir, ProgramDir());
  return engine::Backend::Create({dir, isa, flags.threads});
}

Result<OpenedEngine> OpenEngine(const EngineFlags& flags, uint32_t context_tokens) {
  OpenedEngine opened;
  KVANT_ASSIGN_OR_RETURN(const std::string path, FindModel(flags.model, flags.models_dir));
  KVANT_ASSIGN_OR_RETURN(opened.model, engine::Model::Load(path));
  KVANT_ASSIGN_OR_RETURN(opened.backend, OpenBackend(flags));
  opened.engine = std::make_unique<engine::Engine>(opened.model.get(), opened.backend.get(), context_tokens);
  return opened;
}

}  // namespace kvant::cli
