#include "cli/profile_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/model_store.h"
#include "kvant/engine/profile.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

std::string FileName(const engine::Model& model, const codec::Precision& precision) {
  std::string name = fmt::format("{}.{:016x}.{}.profile", fs::path(model.path()).stem().string(), model.fingerprint(),
                                 codec::PrecisionWord(precision));
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
    c = plain ? c : '-';
  }
  return name;
}

Status Use(const std::string& path, const std::string& given, const codec::Precision& precision,
           const engine::Tokenizer& tokenizer, engine::Engine& engine) {
  const std::string word = codec::PrecisionWord(precision);
  Result<engine::Profile> profile = engine::LoadProfile(path, engine, tokenizer);
  if (profile.status().code() == StatusCode::kNotFound) {
    return {StatusCode::kNotFound,
            fmt::format("precision '{}' takes its maps from a profile of the model, and there is no {}; make it with: "
                        "kvant calibrate -m {} --kv {}{}",
                        word, path, engine.model().path(), word, given.empty() ? "" : " --profile " + given)};
  }
  KVANT_RETURN_IF_ERROR(profile.status());
  if (profile->precision != precision) {
    return {StatusCode::kMismatch,
            fmt::format("{} has the maps of {}, not of {}", path, codec::PrecisionWord(profile->precision), word)};
  }
  engine.UseProfile(std::make_shared<const engine::Profile>(std::move(*profile)));
  return OkStatus();
}

}  // namespace

Result<std::string> ProfilePath(const std::string& given, const engine::Model& model,
                                const codec::Precision& precision) {
  if (!given.empty()) {
    return given;
  }
  const Result<std::string> data = DataDir();
  return data.ok() ? Result<std::string>((fs::path(*data) / "profiles" / FileName(model, precision)).string())
                   : Status(StatusCode::kNotFound, "no folder for profiles: set --profile, XDG_DATA_HOME or HOME");
}

Status MakeProfileFolder(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) {
    fs::create_directories(folder, error);
  }
  return error ? Status(StatusCode::kIoError, "cannot make folder " + folder.string() + ": " + error.message())
               : OkStatus();
}

void AddProfileFlag(CLI::App& command, std::string& profile) {
  AddOption(command, "--profile", profile,
            "File with the model's maps for map=model or eq=model, as calibrate writes it (default: in the user's data "
            "folder)");
}

bool WantProfiles(std::span<const codec::Precision> precisions) {
  return std::any_of(precisions.begin(), precisions.end(),
                     [](const codec::Precision& precision) { return precision.maps_of_model; });
}

Status UseProfiles(std::span<const codec::Precision> precisions, const std::string& given,
                   const engine::Tokenizer& tokenizer, engine::Engine& engine) {
  if (!given.empty() && !WantProfiles(precisions)) {
    return {StatusCode::kInvalidArgument,
            "--profile: no precision here takes its maps from it, by map=model or eq=model"};
  }
  for (const codec::Precision& precision : precisions) {
    if (precision.maps_of_model) {
      KVANT_ASSIGN_OR_RETURN(const std::string path, ProfilePath(given, engine.model(), precision));
      KVANT_RETURN_IF_ERROR(Use(path, given, precision, tokenizer, engine));
    }
  }
  return OkStatus();
}

}  // namespace kvant::cli
