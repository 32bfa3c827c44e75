#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvant/base/status.h"
#include "kvant/codec/layer_block.h"
#include "kvant/wire/block_frame.h"
#include "kvant/wire/frame.h"

namespace kvant::wire {

// Before the block, a layer frame's payload says how to read it:
//
//   offset in frame  bytes  field
//   40               1      codec
//   41               1      equalized, 0 or 1
//   42               2      head dimension
//   44               4      KV heads
//   48               4      layers of the model
//   52               1      sink tokens
//   53               3      skipped tokens: positions before them that are out of the layer's window
//   56               4      encoded tokens
//   60               4      tail tokens
//   64               …      block (codec/layer_block.h)

/// A layer frame whose block is to be written.
///
/// Errors  kInvalidArgument, kCapacityExceeded, kPrecisionUnsupported, kModelUnsupported as DecodeLayer would
///         refuse the layout; kOutOfMemory
Result<BlockFrame> AllocateLayer(uint64_t session, uint32_t layer, const codec::LayerBlockLayout& layout);

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
