#pragma once

#include <string>

#include "cli/console.h"

namespace kvant::cli {

/// InspectFrames' report for people: a row a frame; of a single frame everything, of several what the parts of their
/// layers take together; then every error with the frame it is in.
std::string FramesText(const Json& report);

}  // namespace kvant::cli
