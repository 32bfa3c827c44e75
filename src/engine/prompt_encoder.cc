#include "kvant/engine/prompt_encoder.h"

#include <algorithm>

#include "engine/pair_maps.h"
#include "kvant/policy/importance.h"
#include "kvant/policy/tier_map.h"

namespace kvant::engine {
namespace {

using codec::RankScope;

// The tokens of a layer that are to be given to tiers: due and in reach.
struct Choice {
  Choice(const cache::LayerCache& cache, codec::PromptTail tail)
      : skipped(cache.num_skipped_due(tail)),
        first_position(cache.split().num_sinks + cache.split().num_encoded + skipped),
        num_tokens(cache.num_due(tail) - skipped) {}
  uint32_t skipped;
  uint32_t first_position;
  uint32_t num_tokens;
};

}  // namespace

PromptStatistics StatisticsFor(const codec::Precision& precision) {
  if (precision.pairs) {
    return precision.maps_of_model ? PromptStatistics::kNone : PromptStatistics::kPairs;
  }
  if (!precision.spectrum || !policy::ReadsAttention(*precision.spectrum)) {
    return PromptStatistics::kNone;
  }
  return precision.spectrum->importance == codec::Importance::kSampled ? PromptStatistics::kSampledMass
                                                                       : PromptStatistics::kMass;
}

Status PromptEncoder::LayerDone(uint32_t layer, cache::LayerCache& cache, const LayerStatistics& statistics) {
  // A prompt too short for a page says little of its pairs: the next one chooses again.
  if (precision_.pairs && !precision_.maps_of_model && cache.split().num_encoded == 0) {
    KVANT_RETURN_IF_ERROR(ChoosePairMaps(layer, statistics, pool_, cache));
  }
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
  const Choice choice(cache, tail_);
  size_t first = choice.skipped;
  if (policy::ReadsNorms(*precision_.spectrum)) {
    rows = cache.ResidualNorms(pool_);
  } else if (policy::ReadsAttention(*precision_.spectrum)) {
    rows = statistics.mass;
    first = choice.first_position;
  }
  for (std::vector<float>& row : rows) {
    row.erase(row.begin(), row.begin() + static_cast<ptrdiff_t>(first));
    row.resize(choice.num_tokens);
  }
  return rows;
}

Status PromptEncoder::TakeWithTiers(uint32_t layer, cache::LayerCache& cache,
                                    const std::vector<std::vector<float>>& importance) {
  const Choice choice(cache, tail_);
  const policy::TierRequest request{cache.shape().num_kv_heads, choice.first_position, choice.num_tokens, importance};
  KVANT_ASSIGN_OR_RETURN(const codec::Spectrum spectrum, SpectrumOf(layer, cache));
  KVANT_ASSIGN_OR_RETURN(const codec::TierMap tiers, policy::MakeTierMap(spectrum, request));
  return Take(layer, cache, &tiers);
}

// All layers' rows end with the prompt's last token; a window makes some of them begin later.
Status PromptEncoder::TakeAll() {
  size_t longest = 0;
  for (const Waiting& each : waiting_) {
    longest = std::max(longest, each.importance.size());
  }
  std::vector<std::vector<float>> layers;
  layers.reserve(waiting_.size());
  for (const Waiting& each : waiting_) {
    std::vector<float>& row = layers.emplace_back(longest);
    std::copy(each.importance.begin(), each.importance.end(),
              row.end() - static_cast<ptrdiff_t>(each.importance.size()));
  }
  const std::vector<float> all = policy::Combine(layers);
  for (uint32_t layer = 0; layer < waiting_.size(); ++layer) {
    const auto count = static_cast<ptrdiff_t>(waiting_[layer].importance.size());
    const std::vector<std::vector<float>> ranking = {{all.end() - count, all.end()}};
    KVANT_RETURN_IF_ERROR(TakeWithTiers(layer, *waiting_[layer].cache, ranking));
  }
  waiting_.clear();
  return OkStatus();
}

}  // namespace kvant::engine
