#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"

// Layers that share pages, and layers that are cut back to what they began with.
namespace kvant::cache {

LayerCache LayerCache::Fork() const {
  LayerCache fork(shape_, precision_, isa_, account_);
  fork.equalization_ = equalization_;
  fork.sinks_ = sinks_.Fork();
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    fork.tiers_[tier] = tiers_[tier].Fork();
  }
  fork.pair_format_ = pair_format_;
  fork.plans_ = plans_;
  fork.pages_ = pages_.Fork();
  fork.num_dropped_ = num_dropped_;
  fork.num_skipped_ = num_skipped_;
  fork.num_int4_before_pages_ = num_int4_before_pages_;
  fork.residual_ = residual_.Fork();
  fork.window_ = window_;
  fork.positions_ = positions_;
  return fork;
}

uint32_t LayerCache::ReusableTokens(uint32_t tokens) const {
  const uint32_t exact_begin = sinks_.num_tokens() + num_encoded();
  if (tokens >= num_tokens()) {
    return num_tokens();
  }
  if (num_unreachable() > 0) {
    return 0;
  }
  if (tokens >= exact_begin || num_encoded() == 0) {
    return tokens;
  }
  if (precision_.DependsOnPrompt() || tokens < sinks_.num_tokens()) {
    return 0;
  }
  const codec::TokenSplit split = codec::SplitPrompt(precision_, tokens, codec::PromptTail::kByPosition);
  return split.num_sinks + split.num_encoded;
}

void LayerCache::KeepFirst(uint32_t tokens) {
  KVANT_CHECK(tokens == ReusableTokens(tokens), "cut where the layer can be cut");
  const auto cut = [&](PageRun& run, uint32_t keep) {
    run.Shrink(run.num_tokens() - std::min(keep, run.num_tokens()));
  };
  const auto behind = [&](uint32_t first) { return tokens - std::min(tokens, first); };
  const uint32_t num_sinks = sinks_.num_tokens();
  cut(residual_, behind(num_sinks + num_encoded()));
  if (!precision_.spectrum) {
    cut(pages_, behind(num_sinks));
    cut(run(codec::TierOf(precision_.codec)), behind(num_sinks));
  }
  cut(sinks_, tokens);
}

}  // namespace kvant::cache
