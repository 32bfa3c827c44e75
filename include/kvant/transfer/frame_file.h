#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"

namespace kvant::transfer {

/// A file of frames, one after another. Holds one of them at a time, and never more than the file has.
class FrameFile {
 public:
  /// Errors  kNotFound; kIoError: not a regular file, or not to be read; kOutOfRange: it is empty
  static Result<FrameFile> Open(const std::string& path, uint64_t max_frame_bytes = UINT64_MAX);

  uint64_t num_bytes() const { return num_bytes_; }
  /// Where the next frame begins; the file's size at the end.
  uint64_t offset() const { return offset_; }
  /// Whether the last frame said how long it is. Where it did not, nothing after it can be found.
  bool lost() const { return lost_; }

  /// The bytes of the next frame: all that it announces, or fewer where the file ends before; its header alone where
  /// that is none. Nothing at the end.
  /// Errors  kCapacityExceeded: more than max_frame_bytes, and it is passed over; kIoError; kOutOfMemory
  Result<std::optional<Buffer>> Next();

 private:
  FrameFile(std::ifstream file, uint64_t num_bytes, uint64_t max_frame_bytes)
      : file_(std::move(file)), num_bytes_(num_bytes), max_frame_bytes_(max_frame_bytes) {}

  Result<Buffer> Read(uint64_t num_bytes);  ///< from offset_, which stays

  std::ifstream file_;
  uint64_t num_bytes_;
  uint64_t max_frame_bytes_;
  uint64_t offset_ = 0;
  bool lost_ = false;
};

}  // namespace kvant::transfer
