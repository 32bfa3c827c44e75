#pragma once

#include <cstdint>
#include <string>

#include "cli/console.h"

namespace kvant::cli {

/// What is found in one file.
struct Inspection {
  Json json;         ///< {"file", "kind", "bytes", "num_frames", "frames", "errors"}
  std::string text;  ///< the same as tables, for people
  uint64_t num_faults = 0;
};

/// A file of frames, one after another (docs/format/wire.md). What cannot be read is a fault, too.
Inspection InspectFrames(const std::string& path, uint64_t max_frame_bytes);

}  // namespace kvant::cli
