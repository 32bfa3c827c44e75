#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/cache/sequence.h"
#include "kvant/codec/tiers.h"

namespace kvant::eval {

/// Keys and values of one KV head by position, in fp32 as attention meets them.
/// Shapes  keys, values [positions, head_dim]; tiers [positions]
struct PlainHead {
  uint32_t head_dim = 0;
  std::vector<float> keys;
  std::vector<float> values;
  /// How each token is stored, kDropped where it is nowhere: dropped, or out of the window's reach.
  /// Pages of pairs count as int4, whatever their bits.
  std::vector<codec::Tier> tiers;

  uint32_t num_positions() const { return static_cast<uint32_t>(tiers.size()); }
  const float* key(uint32_t position) const { return keys.data() + size_t{position} * head_dim; }
};

PlainHead LoadPlainHead(const cache::LayerCache& cache, uint32_t kv_head);

}  // namespace kvant::eval
