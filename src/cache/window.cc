#include <algorithm>

#include "kvant/cache/sequence.h"

// What a sliding window takes out of reach.
namespace kvant::cache {
namespace {

uint32_t CountBelow(std::span<const int32_t> rising, uint32_t position) {
  const auto first = std::lower_bound(rising.begin(), rising.end(), static_cast<int32_t>(position));
  return static_cast<uint32_t>(first - rising.begin());
}

}  // namespace

void LayerCache::SetWindow(uint32_t tokens) {
  window_ = tokens;
  FreeUnreachable();
}

uint32_t LayerCache::TierRowsBefore(codec::Tier tier, uint32_t kv_head, uint32_t position) const {
  if (!precision_.spectrum) {
    const uint32_t after_sinks = position - std::min(position, sinks_.num_tokens());
    return std::min(after_sinks, run(tier).num_tokens());
  }
  const uint32_t in_pages = tier == codec::Tier::kInt4 ? pages_.num_tokens() : 0;
  return CountBelow(std::span(positions_[static_cast<size_t>(tier)][kv_head]).subspan(in_pages), position);
}

uint32_t LayerCache::PagedBefore(uint32_t kv_head, uint32_t position) const {
  const auto& int4 = positions_[static_cast<size_t>(codec::Tier::kInt4)];
  return CountBelow(std::span(int4[kv_head]).first(pages_.num_tokens()), position);
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
      tokens = std::min(tokens, TierRowsBefore(tier, kv_head, position));
    }
    run(tier).Release(tokens);
  }
  uint32_t in_pages = position - std::min(position, sinks_.num_tokens());
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads && precision_.has_int4_pages(); ++kv_head) {
    in_pages = std::min(in_pages, PagedBefore(kv_head, position));
  }
  pages_.Release(in_pages);
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
        gone += TierRowsBefore(tier, kv_head, position);
        gone += tier == codec::Tier::kInt4 && layout.int4_pages ? PagedBefore(kv_head, position) : 0;
      }
      layout.tiers->of(tier) -= gone / shape_.num_kv_heads;
      if (tier == codec::Tier::kInt4 && layout.int4_pages) {
        layout.int4_pages->count = std::min(layout.int4_pages->count, layout.tiers->int4 / codec::kInt4PageTokens);
      }
      left += layout.tiers->of(tier);
    }
    layout.tiers->dropped = split.num_encoded - std::min(left, split.num_encoded);
  }
  return layout;
}

}  // namespace kvant::cache
