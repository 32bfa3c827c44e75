#include "kvant/engine/prompt_encoder.h"

#include <algorithm>

#include "kvant/policy/importance.h"
#include "kvant/policy/tier_map.h"

namespace kvant::engine {
namespace {

using codec::RankScope;

// Positions of a layer before the first token that can be due.
uint32_t FirstDue(const cache::LayerCache& cache) {
  const codec::TokenSplit split = cache.split();
  return split.num_sinks + split.num_encoded;
}

}  // namespace

PromptStatistics StatisticsFor(const codec::Precision& precision) {
  if (!precision.spectrum || !policy::ReadsAttention(*precision.spectrum)) {
    return PromptStatistics::kNone;
  }
  return precision.spectrum->importance == codec::Importance::kSampled ? PromptStatistics::kSampledMass
                                                                       : PromptStatistics::kMass;
}

Status PromptEncoder::LayerDone(uint32_t layer, cache::LayerCache& cache, const LayerStatistics& statistics) {
  const uint32_t due = cache.num_due(tail_);
  if (!precision_.spectrum || due == 0) {
    return Take(layer, cache, nullptr);
  }
  std::vector<std::vector<float>> importance = ImportanceOf(cache, statistics);
  if (precision_.spectrum->scope != RankScope::kHead && !importance.empty()) {
    importance = {policy::Combine(importance)};
  }
  if (precision_.spectrum->scope != RankScope::kModel || importance.empty()) {
    return TakeWithTiers(layer, cache, importance);
  }
  waiting_.push_back({&cache, std::move(importance.front())});
  return statistics.last_layer ? TakeAll() : OkStatus();
}

std::vector<std::vector<float>> PromptEncoder::ImportanceOf(const cache::LayerCache& cache,
                                                            const LayerStatistics& statistics) const {
  std::vector<std::vector<float>> rows;
  size_t first = 0;
  if (policy::ReadsNorms(*precision_.spectrum)) {
    rows = cache.ResidualNorms(pool_);
  } else if (policy::ReadsAttention(*precision_.spectrum)) {
    rows = statistics.mass;
    first = FirstDue(cache);
  }
  for (std::vector<float>& row : rows) {
    row.erase(row.begin(), row.begin() + static_cast<ptrdiff_t>(first));
    row.resize(cache.num_due(tail_));
  }
  return rows;
}

Status PromptEncoder::TakeWithTiers(uint32_t layer, cache::LayerCache& cache,
                                    const std::vector<std::vector<float>>& importance) {
  const policy::TierRequest request{cache.shape().num_kv_heads, FirstDue(cache), cache.num_due(tail_), importance};
  KVANT_ASSIGN_OR_RETURN(const codec::TierMap tiers, policy::MakeTierMap(*precision_.spectrum, request));
  return Take(layer, cache, &tiers);
}

Status PromptEncoder::TakeAll() {
  std::vector<std::vector<float>> layers;
  layers.reserve(waiting_.size());
  for (Waiting& each : waiting_) {
    layers.push_back(std::move(each.importance));
  }
  const std::vector<std::vector<float>> ranking = {policy::Combine(layers)};
  for (uint32_t layer = 0; layer < waiting_.size(); ++layer) {
    KVANT_RETURN_IF_ERROR(TakeWithTiers(layer, *waiting_[layer].cache, ranking));
  }
  waiting_.clear();
  return OkStatus();
}

}  // namespace kvant::engine
