#include "cli/bench/divergence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvant::cli {
namespace {

// Subtracted from a logit, the logarithm of its probability remains.
double LogNormalizer(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0,
                                     [&](double so_far, float logit) { return so_far + std::exp(logit - largest); });
  return largest + std::log(sum);
}

}  // namespace

double Divergence(std::span<const float> expected, std::span<const float> actual) {
  const double expected_normalizer = LogNormalizer(expected);
  const double actual_normalizer = LogNormalizer(actual);
  double divergence = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double log_p = expected[i] - expected_normalizer;
    divergence += std::exp(log_p) * (log_p - (actual[i] - actual_normalizer));
  }
  return divergence;
}

}  // namespace kvant::cli
