#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/codec/progressive.h"
#include "kvant/wire/block_frame.h"
#include "kvant/wire/frame.h"

// Raising tokens of a progressive prompt while decoding goes on (docs/format/wire.md, "Upgrade").
namespace kvant::wire {

// Requests and upgrades begin with the same fields:
//
//   offset in frame  bytes  field
//   40               2      head dimension
//   42               2      layers of the model
//   44               4      KV heads
//   48               4      tokens that have a tier
//   52               4      of each KV head: raised from int4 to int8
//   56               4      … from int4 to fp16
//   60               4      … from int8 to fp16
//   64               …      request: tier ids a KV head; upgrade: block (codec/progressive.h)

/// What the sender holds the planes for: how many tokens of each layer may come to lie in each tier.
struct UpgradeOffer {
  std::vector<codec::TierCounts> layers;
  friend bool operator==(const UpgradeOffer&, const UpgradeOffer&) = default;
};

/// Which tokens of a layer the receiver wants raised: the tiers they shall have.
/// Shapes  ids [num_kv_heads, num_tokens]
struct UpgradeRequest {
  uint32_t layer = 0;
  codec::UpgradeLayout layout;
  std::vector<codec::Tier> ids;
};

/// An upgrade frame whose block is to be written.
///
/// Errors  kInvalidArgument, kCapacityExceeded, kModelUnsupported as DecodeUpgrade would refuse it; kOutOfMemory
Result<BlockFrame> AllocateUpgrade(uint64_t session, uint32_t layer, const codec::UpgradeLayout& layout);

/// An upgrade inside the bytes it was received in.
struct UpgradeView {
  uint32_t layer = 0;
  codec::UpgradeLayout layout;
  std::span<const std::byte> block;
};

/// Requires values within the limits that the decoders demand. Errors  kOutOfMemory
Result<Buffer> EncodeUpgradeOffer(uint64_t session, const UpgradeOffer& offer);
Result<Buffer> EncodeUpgradeRequest(uint64_t session, const UpgradeRequest& request);

/// Decoders of opened frames. What is accepted encodes to the same bytes again.
///
/// Requires the matching frame.header.type
/// Errors   kOutOfRange a payload of another size; kInvalidArgument, naming the field; kModelUnsupported a head
///          dimension no codec takes; kCapacityExceeded; kCorruption bits beyond the last tier id of a request
Result<UpgradeOffer> DecodeUpgradeOffer(const FrameView& frame);
Result<UpgradeRequest> DecodeUpgradeRequest(const FrameView& frame);
Result<UpgradeView> DecodeUpgrade(const FrameView& frame);

}  // namespace kvant::wire
