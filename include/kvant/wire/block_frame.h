#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "kvant/base/buffer.h"
#include "kvant/wire/frame.h"

namespace kvant::wire {

/// Frames of bulk begin with fields that say how to read the block that is the rest of the payload.
inline constexpr size_t kBlockPrefixBytes = 24;
inline constexpr size_t kBlockOffset = kHeaderBytes + kBlockPrefixBytes;
static_assert(kBlockOffset % Buffer::kAlignment == 0, "vectors read the block where it was received");

/// A frame in the making whose fields are in place (AllocateLayer, AllocateUpgrade): one buffer, the encoder writes the
/// block where it will be sent from.
class BlockFrame {
 public:
  explicit BlockFrame(Buffer buffer) : buffer_(std::move(buffer)) {}

  /// To be written whole before Seal.
  std::span<std::byte> block() { return buffer_.bytes().subspan(kBlockOffset); }

  /// Compute the checksum and give the frame away.
  Buffer Seal() &&;

 private:
  Buffer buffer_;
};

}  // namespace kvant::wire
