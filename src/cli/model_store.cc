#include "cli/model_store.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

bool IsFile(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) && !fs::is_directory(path, ignored);
}

Status NoModel(const std::string& name, const fs::path& dir) {
  if (name.empty()) {
    return {StatusCode::kNotFound, "the default model is not installed in " + dir.string() +
                                       ": run scripts/setup.sh, or name a model with -m"};
  }
  return {StatusCode::kNotFound, "no model file " + name + ", and no model of that name in " + dir.string()};
}

}  // namespace

Result<std::string> DataDir() {
  if (const std::string_view data = Environment("XDG_DATA_HOME"); !data.empty()) {
    return (fs::path(data) / "kvant").string();
  }
  if (const std::string_view home = Environment("HOME"); !home.empty()) {
    return (fs::path(home) / ".local/share/kvant").string();
  }
  return Status(StatusCode::kNotFound, "no data folder: set XDG_DATA_HOME or HOME");
}

Result<std::string> ModelsDir(const std::string& given) {
  if (!given.empty()) {
    return given;
  }
  const Result<std::string> data = DataDir();
  return data.ok() ? Result<std::string>((fs::path(*data) / "models").string())
                   : Status(StatusCode::kNotFound, "no folder for models: set --models-dir, XDG_DATA_HOME or HOME");
}

Result<std::string> FindModel(const std::string& name, const std::string& models_dir) {
  if (!name.empty() && IsFile(name)) {
    return name;
  }
  KVANT_ASSIGN_OR_RETURN(const std::string dir, ModelsDir(models_dir));
  const std::string wanted = name.empty() ? kDefaultModel : name;
  if (wanted.find('/') == std::string::npos) {
    for (const std::string& candidate : {wanted, wanted + ".gguf"}) {
      if (IsFile(fs::path(dir) / candidate)) {
        return (fs::path(dir) / candidate).string();
      }
    }
  }
  return NoModel(name, dir);
}

Result<std::vector<std::string>> InstalledModels(const std::string& dir) {
  std::vector<std::string> models;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".gguf" && IsFile(entry->path())) {
      models.push_back(entry->path().string());
    }
  }
  if (error == std::errc::no_such_file_or_directory) {
    return Status(StatusCode::kNotFound, "there is no folder " + dir);
  }
  if (error) {
    return Status(StatusCode::kIoError, "cannot list " + dir + ": " + error.message());
  }
  std::sort(models.begin(), models.end());
  return models;
}

}  // namespace kvant::cli
