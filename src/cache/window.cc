#include <algorithm>

#include "kvant/cache/sequence.h"

// What a sliding window takes out of reach.
namespace kvant::cache {
void LayerCache::SetWindow(uint32_t tokens) {
  window_ = tokens;
  FreeUnreachable();
}

uint32_t LayerCache::TierTokensBefore(codec::Tier tier, uint32_t kv_head, uint32_t position) const {
  if (!precision_.spectrum) {
    const uint32_t after_sinks = position - std::min(position, sinks_.num_tokens());
    return std::min(after_sinks, run(tier).num_tokens());
  }
  const std::vector<int32_t>& positions = positions_[static_cast<size_t>(tier)][kv_head];
  const auto first = std::lower_bound(positions.begin(), positions.end(), static_cast<int32_t>(position));
  return static_cast<uint32_t>(first - positions.begin());
}

void LayerCache::FreeUnreachable() {
  const uint32_t position = num_unreachable();
  if (position == 0) {
    return;
  }
  // Nothing is added to the sinks once there are other tokens: their page goes when the last of them does.
  sinks_.Release(position >= sinks_.num_tokens() ? sinks_.layout().capacity : 0);
  for (const codec::Tier tier : codec::kStoredTiers) {
    uint32_t tokens = run(tier).num_tokens();
    for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      tokens = std::min(tokens, TierTokensBefore(tier, kv_head, position));
    }
    if (tier == codec::Tier::kInt4 && precision_.has_int4_pages()) {
      const uint32_t in_pages = std::min(tokens, pages_.num_tokens());
      pages_.Release(in_pages);
      tokens -= in_pages;
    }
    run(tier).Release(tokens);
  }
  if (precision_.pairs) {
    pages_.Release(position - std::min(position, sinks_.num_tokens()));
  }
  const uint32_t residual_begin = sinks_.num_tokens() + num_encoded();
  if (precision_.is_exact() && position > residual_begin) {  // else it is read again, to be encoded
    residual_.Release(position - residual_begin);
  }
}

codec::LayerBlockLayout LayerCache::reachable_layout() const {
  codec::LayerBlockLayout layout = block_layout();
  const uint32_t position = num_unreachable();
  const codec::TokenSplit split = layout.split = codec::SkipFirst(layout.split, position);
  if (layout.tiers && split.num_encoded < num_encoded()) {
    uint32_t left = 0;
    for (const codec::Tier tier : codec::kStoredTiers) {
      uint32_t gone = 0;
      for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        gone += TierTokensBefore(tier, kv_head, position);
      }
      layout.tiers->of(tier) -= gone / shape_.num_kv_heads;
      if (tier == codec::Tier::kInt4 && layout.int4_pages) {
        layout.int4_pages = std::min(*layout.int4_pages, layout.tiers->int4 / codec::kInt4PageTokens);
      }
      left += layout.tiers->of(tier);
    }
    layout.tiers->dropped = split.num_encoded - std::min(left, split.num_encoded);
  }
  return layout;
}

}  // namespace kvant::cache
