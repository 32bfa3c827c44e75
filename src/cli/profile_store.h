#pragma once

#include <span>
#include <string>

#include "cli/engine_flags.h"
#include "kvant/codec/precision.h"
#include "kvant/engine/tokenizer.h"

namespace kvant::cli {

/// Where a model's profile for a precision lies: `given`, or a file of the model's name and fingerprint and of the
/// precision's name in the user's data folder (XDG_DATA_HOME, else HOME/.local/share) + kvant/profiles.
/// Errors  kNotFound: no such folder is known
Result<std::string> ProfilePath(const std::string& given, const engine::Model& model,
                                const codec::Precision& precision);

/// The folder of a profile, made where it is missing. Errors  kIoError
Status MakeProfileFolder(const std::string& path);

void AddProfileFlag(CLI::App& command, std::string& profile);

/// Whether one of them takes its maps from a profile.
bool WantProfiles(std::span<const codec::Precision> precisions);

/// Give the engine the profiles that the precisions need.
/// Errors  kNotFound says how one is made; what LoadProfile returns; kMismatch: a profile of another precision;
///         kInvalidArgument: one is given, and no precision takes it
Status UseProfiles(std::span<const codec::Precision> precisions, const std::string& given,
                   const engine::Tokenizer& tokenizer, engine::Engine& engine);

}  // namespace kvant::cli
