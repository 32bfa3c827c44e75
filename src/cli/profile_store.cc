#include "cli/profile_store.h"

#include <fmt/core.h>

#include <cctype>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/model_store.h"
#include "kvant/engine/profile.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

std::string FileName(const std::string& model_path, const codec::Precision& precision) {
  std::string name = fs::path(model_path).stem().string() + "." + codec::PrecisionWord(precision) + ".profile";
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
    c = plain ? c : '-';
  }
  return name;
}

Status Use(const std::string& path, const codec::Precision& precision, const engine::Tokenizer& tokenizer,
           engine::Engine& engine) {
  const std::string word = codec::PrecisionWord(precision);
  Result<engine::Profile> profile = engine::LoadProfile(path, engine, tokenizer);
  if (profile.status().code() == StatusCode::kNotFound) {
    return {StatusCode::kNotFound,
            fmt::format("precision '{}' takes its maps from a profile of the model, and there is "
                        "no {}; make it with: kvant calibrate --kv {}",
                        word, path, word)};
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

Result<std::string> ProfilePath(const std::string& given, const std::string& model_path,
                                const codec::Precision& precision) {
  if (!given.empty()) {
    return given;
  }
  const Result<std::string> data = DataDir();
  return data.ok() ? Result<std::string>((fs::path(*data) / "profiles" / FileName(model_path, precision)).string())
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

Status UseProfiles(std::span<const codec::Precision> precisions, const std::string& given,
                   const engine::Tokenizer& tokenizer, engine::Engine& engine) {
  for (const codec::Precision& precision : precisions) {
    if (precision.maps_of_model) {
      KVANT_ASSIGN_OR_RETURN(const std::string path, ProfilePath(given, engine.model().path(), precision));
      KVANT_RETURN_IF_ERROR(Use(path, precision, tokenizer, engine));
    }
  }
  return OkStatus();
}

}  // namespace kvant::cli
