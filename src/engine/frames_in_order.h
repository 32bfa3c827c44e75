#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/transfer/frame_file.h"
#include "kvant/wire/frame.h"

namespace kvant::engine {

/// What a decoder says of a frame in a file: a field beyond its limits is damage there, and no word of the user's.
inline Status AsDamage(const Status& status) {
  const bool of_a_field =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kPrecisionUnsupported;
  return of_a_field ? Status(StatusCode::kCorruption, std::string(status.message())) : status;
}

/// The frames of a file that are due in a fixed order. Errors name the file and the frame.
class FramesInOrder {
 public:
  static Result<FramesInOrder> Open(const std::string& path);

  /// The next frame, opened, of the type that is due. It lies here until the next call.
  Result<wire::FrameView> Next(wire::FrameType due);
  /// Errors  kCorruption: there are bytes after the last frame
  Status End() const;

 private:
  FramesInOrder(std::string path, transfer::FrameFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Result<wire::FrameView> Take(wire::FrameType due);

  std::string path_;
  transfer::FrameFile file_;
  uint32_t count_ = 0;
  std::optional<Buffer> bytes_;  ///< of the frame handed out last
};

}  // namespace kvant::engine
