#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/codec/layer_block.h"
#include "kvant/wire/frame.h"

namespace kvant::wire {

/// Before the block, a layer frame's payload says how to read it:
///
///   offset in frame  bytes  field
///   40               1      codec
///   41               1      equalized, 0 or 1
///   42               2      head dimension
///   44               4      KV heads
///   48               4      layers of the model
///   52               1      sink tokens
///   53               3      skipped tokens: positions before them that are out of the layer's window
///   56               4      encoded tokens
///   60               4      tail tokens
///   64               …      block (codec/layer_block.h)
inline constexpr size_t kLayerPrefixBytes = 24;
inline constexpr size_t kBlockOffset = kHeaderBytes + kLayerPrefixBytes;
static_assert(kBlockOffset % Buffer::kAlignment == 0, "vectors read the block where it was received");

/// A layer frame in the making: one buffer, the encoder writes the block where it will be sent from.
class LayerFrame {
 public:
  /// Errors  kInvalidArgument, kCapacityExceeded, kPrecisionUnsupported, kModelUnsupported as DecodeLayer would
  ///         refuse the layout; kOutOfMemory
  static Result<LayerFrame> Allocate(uint64_t session, uint32_t layer, const codec::LayerBlockLayout& layout);

  /// To be written whole before Seal.
  std::span<std::byte> block() { return buffer_.bytes().subspan(kBlockOffset); }

  /// Compute the checksum and give the frame away.
  Buffer Seal() &&;

 private:
  explicit LayerFrame(Buffer buffer) : buffer_(std::move(buffer)) {}
  Buffer buffer_;
};

/// A layer inside the bytes it was received in; the block lies kBlockOffset bytes into the frame.
struct LayerView {
  uint32_t layer = 0;
  codec::LayerBlockLayout layout;
  std::span<const std::byte> block;
};

/// Requires frame.header.type == kLayer
/// Errors   kOutOfRange a payload of another size than the layout's; kInvalidArgument, naming the field, a value
///          beyond its limits; kPrecisionUnsupported an unknown codec; kModelUnsupported a head dimension no codec
///          takes
Result<LayerView> DecodeLayer(const FrameView& frame);

}  // namespace kvant::wire
