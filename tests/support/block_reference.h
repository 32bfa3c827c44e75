#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/half.h"
#include "kvant/codec/layer_block.h"
#include "kvant/codec/progressive.h"

namespace kvant::test {

/// Exact rows of one layer. Shapes  keys, values [num_kv_heads, num_tokens, head_dim]
struct LayerRows {
  uint32_t num_kv_heads = 0;
  uint32_t num_tokens = 0;
  uint32_t head_dim = 0;
  std::vector<Half> keys;
  std::vector<Half> values;

  size_t Row(uint32_t kv_head, uint32_t token) const { return (size_t{kv_head} * num_tokens + token) * head_dim; }
};

/// Rows that a seed determines on every machine: per channel an offset and a scale of its own in the keys, and among
/// the tokens one of zeros, one constant, one of tiny and one of large values.
LayerRows MakeRows(const codec::CacheShape& shape, uint32_t num_tokens, uint64_t seed);

/// One layer block straight from the scalar references, section by section. `tiers` goes with layout.tiers.
void EncodeBlockRef(const codec::LayerBlockLayout& layout, const LayerRows& rows, std::span<std::byte> block,
                    const codec::TierMap* tiers = nullptr);

/// One upgrade straight from the rules: every plane of a block's rows, in position order. Returns the planes, as the
/// sample of the golden upgrade says. `of` is the layout of the block.
std::vector<float> EncodeUpgradeRef(const codec::UpgradeLayout& layout, const codec::LayerBlockLayout& of,
                                    const LayerRows& rows, const codec::TierMap& from, const codec::TierMap& to,
                                    std::span<std::byte> block);

/// One block of pair pages, straight from the scalar codec. Returns what it decodes to: keys, then values,
/// [num_kv_heads, num_tokens, head_dim] each. Values are not turned.
std::vector<float> EncodePairBlockRef(const codec::LayerBlockLayout& layout, const std::vector<codec::WidthMap>& maps,
                                      const LayerRows& rows, std::span<std::byte> block);

/// Tiers of every head's tokens at random, with these counts.
codec::TierMap RandomTiers(const codec::TierCounts& counts, uint32_t num_kv_heads, uint64_t seed);

/// Its inverse in fp32; dropped tokens are NaN. Shapes  keys, values [num_kv_heads, num_tokens, head_dim]
struct DecodedLayer {
  std::vector<float> keys;
  std::vector<float> values;
};
DecodedLayer DecodeBlockRef(const codec::LayerBlockLayout& layout, std::span<const std::byte> block);

}  // namespace kvant::test
