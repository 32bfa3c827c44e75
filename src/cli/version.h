#pragma once

#include <string>

namespace kvant::cli {

/// What --version prints: version, commit, ggml's version, instruction sets found and used.
std::string VersionText();

}  // namespace kvant::cli
