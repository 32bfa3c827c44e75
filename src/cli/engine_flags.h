#pragma once

#include <memory>
#include <string>

#include "cli/command.h"
#include "kvant/engine/engine.h"

namespace kvant::cli {

/// Flags of every command that runs a model.
struct EngineFlags {
  std::string model;  ///< as FindModel takes it
  std::string models_dir;
  int threads;
  std::string isa;

  EngineFlags();  ///< all threads of the machine, its best instruction set, the default model
};

/// -m, --models-dir, --threads, --isa.
void AddEngineFlags(CLI::App& command, EngineFlags& flags);
/// --kv-memory-mb: how much a KV cache may take; 0 is no limit.
void AddKvMemoryFlag(CLI::App& command, uint64_t& megabytes);
uint64_t KvMemoryBytes(uint64_t megabytes);
/// --threads and --isa alone, for what runs no model.
void AddCpuFlags(CLI::App& command, EngineFlags& flags);

/// ggml's CPU backend as --isa and --threads say, from the folder of the running program.
Result<std::unique_ptr<engine::Backend>> OpenBackend(const EngineFlags& flags);

/// A model, a backend and an engine over both.
struct OpenedEngine {
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::Backend> backend;
  std::unique_ptr<engine::Engine> engine;
};
/// `context_tokens`: as Engine takes it.
Result<OpenedEngine> OpenEngine(const EngineFlags& flags, uint32_t context_tokens = 0);

}  // namespace kvant::cli
