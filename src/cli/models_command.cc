#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/format.h"
#include "cli/model_store.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

struct Found {
  std::string path;
  Result<engine::GgufInfo> info;

  std::string name() const { return fs::path(path).filename().string(); }
};

Json ToJson(const Found& found) {
  Json model = {{"name", found.name()}, {"path", found.path}, {"default", found.name() == kDefaultModel}};
  if (!found.info.ok()) {
    model["error"] = found.info.status().message();
    return model;
  }
  const engine::GgufInfo& info = *found.info;
  model.update({{"bytes", info.file_size},
                {"architecture", info.architecture},
                {"weights", info.weight_type},
                {"context", info.params.context_length},
                {"layers", info.params.num_layers},
                {"q_heads", info.params.num_q_heads},
                {"kv_heads", info.params.num_kv_heads},
                {"head_dim", info.params.head_dim}});
  return model;
}

std::vector<std::string> ToRow(const Found& found) {
  const std::string name = found.name() + (found.name() == kDefaultModel ? " (default)" : "");
  if (!found.info.ok()) {
    return {name, "cannot be used: " + found.info.status().message()};
  }
  const engine::GgufInfo& info = *found.info;
  return {name, info.architecture, info.weight_type, FormatBytes(info.file_size),
          fmt::format("{}", info.params.context_length)};
}

Status RunModels(const std::string& models_dir, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const std::string dir, ModelsDir(models_dir));
  Result<std::vector<std::string>> installed = InstalledModels(dir);
  if (installed.status().code() == StatusCode::kNotFound && models_dir.empty()) {
    installed = std::vector<std::string>();  // the user's data folder is made by the first installation
  }
  KVANT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, std::move(installed));
  Json models = Json::array();
  std::vector<std::vector<std::string>> rows = {{"model", "architecture", "weights", "size", "context"}};
  for (const std::string& path : paths) {
    const Found found{path, engine::CheckGguf(path)};
    models.push_back(ToJson(found));
    rows.push_back(ToRow(found));
  }
  console.PrintJson({{"models_dir", dir},
                     {"default", kDefaultModel},
                     {"models", models},
                     {"architectures", engine::SupportedArchitectures()}});
  console.PrintText(paths.empty() ? "no models in " + Printable(dir) + ": run scripts/setup.sh for the default one\n"
                                  : FormatTable(rows, /*header=*/true));
  if (!console.json()) {
    console.PrintNote(fmt::format("architectures: {}", fmt::join(engine::SupportedArchitectures(), ", ")));
  }
  return OkStatus();
}

}  // namespace

void AddModelsCommand(Program& program) {
  auto models_dir = std::make_shared<std::string>();
  CLI::App* command = program.AddCommand("models", "List the models that are installed",
                                         [models_dir](Console& console) { return RunModels(*models_dir, console); });
  AddOption(*command, "--models-dir", *models_dir, "Folder of installed models (default: in the user's data folder)");
}

}  // namespace kvant::cli
