#include "kvant/policy/importance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvant/base/check.h"

namespace kvant::policy {

std::vector<float> PositionImportance(uint32_t num_tokens) {
  constexpr uint32_t kSinks = 4;
  std::vector<float> scores(num_tokens);
  const auto ramp_begin = static_cast<uint32_t>(0.8 * num_tokens);
  const uint32_t ramp_steps = num_tokens - ramp_begin > 1 ? num_tokens - ramp_begin - 1 : 1;
  for (uint32_t j = 0; j < num_tokens; ++j) {
    double score = j < kSinks ? 1.0 : std::exp(-0.01 * (j - kSinks));
    if (j >= ramp_begin) {
      score = std::max(score, 0.3 + 0.5 * (j - ramp_begin) / ramp_steps);
    }
    scores[j] = static_cast<float>(score);
  }
  if (scores.empty()) {
    return scores;
  }
  const auto [low, high] = std::minmax_element(scores.begin(), scores.end());
  const float floor = *low;
  const float range = *high > floor ? *high - floor : 1.0F;
  for (float& score : scores) {
    score = (score - floor) / range;
  }
  return scores;
}

void ApplyRecencyDecay(double decay, std::span<float> mass) {
  if (decay == 0) {
    return;
  }
  for (size_t j = 0; j < mass.size(); ++j) {
    mass[j] *= static_cast<float>(std::exp(-decay * static_cast<double>(mass.size() - 1 - j)));
  }
}

std::vector<float> Combine(std::span<const std::vector<float>> importances) {
  KVANT_CHECK(!importances.empty(), "something to combine");
  std::vector<float> sum(importances[0].size(), 0.0F);
  for (const std::vector<float>& importance : importances) {
    KVANT_CHECK(importance.size() == sum.size(), "rows of equal length");
    const float total = std::accumulate(importance.begin(), importance.end(), 0.0F);
    const float factor = total > 0 ? 1.0F / total : 0.0F;
    for (size_t j = 0; j < sum.size(); ++j) {
      sum[j] += importance[j] * factor;
    }
  }
  return sum;
}

}  // namespace kvant::policy
