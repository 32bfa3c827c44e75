#pragma once

#include <string>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::cli {

/// The model that commands use without -m.
inline constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The user's data folder of this program: XDG_DATA_HOME, else HOME/.local/share, + kvant.
/// Errors  kNotFound: none of them is known
Result<std::string> DataDir();

/// Where installed models lie: `given`, or the user's data folder + models. Errors  kNotFound: none of them is known
Result<std::string> ModelsDir(const std::string& given);

/// The file that -m names: a path, or the name of an installed model with or without ".gguf"; empty is the default.
/// Errors  kNotFound says where was looked
Result<std::string> FindModel(const std::string& name, const std::string& models_dir);

/// Paths of the .gguf files in a folder, sorted.
/// Errors  kNotFound: there is no such folder; kIoError
Result<std::vector<std::string>> InstalledModels(const std::string& dir);

}  // namespace kvant::cli
