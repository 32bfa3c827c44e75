#pragma once

#include <cstdint>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/codec/layer_maps.h"
#include "kvant/codec/precision.h"
#include "kvant/wire/frame.h"

// The maps of one layer that are the model's, for all prompts. In files alone (docs/format/profile.md).
namespace kvant::wire {

inline constexpr uint64_t kMapsBytes = 24;  ///< before the maps themselves

struct MapsFrame {
  uint32_t layer = 0;
  codec::CacheShape shape;
  codec::LayerMaps maps;
  friend bool operator==(const MapsFrame&, const MapsFrame&) = default;
};

/// Requires maps of the shape, one kind of them. Errors  kOutOfMemory; what CheckShape says of the shape
Result<Buffer> EncodeMaps(uint64_t session, const MapsFrame& maps);

/// What is accepted encodes to the same bytes again.
/// Errors  as the decoders of messages.h; kCorruption: a width map that is not of its format; kNumeric: a mean that is
///         not finite, or a scale that is not positive
Result<MapsFrame> DecodeMaps(const FrameView& frame);

}  // namespace kvant::wire
