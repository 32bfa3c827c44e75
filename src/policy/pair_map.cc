#include "kvant/policy/pair_map.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "kvant/base/check.h"

namespace kvant::policy {
namespace {

using codec::PairPrecision;
using codec::PairScore;
using codec::WidthMap;

double ScoreOf(PairScore rule, const PairPrecision::TwoWidths& widths, const PairStatistics& s, uint32_t pair) {
  switch (rule) {
    case PairScore::kNormProduct: return s.QueryNorm(pair) * s.KeyNorm(pair);
    case PairScore::kKeyNorm: return s.KeyNorm(pair);
    case PairScore::kEnergySum: return s.QueryEnergy(pair) + s.KeyEnergy(pair);
    case PairScore::kQueryRange: return s.QueryTimesRange(pair);
    case PairScore::kMagnitude: return s.Magnitude(pair);
    case PairScore::kRange: return s.Range(pair);
    case PairScore::kError: return s.Error(pair, widths.low) - s.Error(pair, widths.high);
    case PairScore::kRandom: break;
  }
  return 0;
}

// What Block-GTQ takes for a width's error.
double EnergyLeft(const PairStatistics& s, uint32_t pair, uint32_t bits) {
  return std::ldexp(s.QueryEnergy(pair) + s.KeyEnergy(pair), -2 * static_cast<int>(bits));
}

std::vector<double> RandomScores(uint32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> scores(count);
  std::generate(scores.begin(), scores.end(), [&] { return static_cast<double>(random() >> 11); });
  return scores;
}

// The most that a pair gains a bit by its next bits, and by how many of them.
struct Step {
  double gain = -INFINITY;
  uint32_t bits = 0;
};

Step BestStep(std::span<const double> errors, uint32_t bits, uint32_t most) {
  Step best;
  for (uint32_t more = 1; more <= most && bits + more <= errors.size(); ++more) {
    const double gain = (errors[bits - 1] - errors[bits + more - 1]) / more;
    if (gain > best.gain) {
      best = {gain, more};
    }
  }
  return best;
}

}  // namespace

std::vector<double> PairScores(PairScore rule, const PairPrecision::TwoWidths& two_widths,
                               const PairStatistics& statistics, uint64_t seed) {
  if (rule == PairScore::kRandom) {
    return RandomScores(statistics.num_pairs(), seed);
  }
  std::vector<double> scores(statistics.num_pairs());
  for (uint32_t pair = 0; pair < scores.size(); ++pair) {
    scores[pair] = ScoreOf(rule, two_widths, statistics, pair);
  }
  return scores;
}

std::vector<bool> SelectSalient(std::span<const double> scores, double percent) {
  constexpr double kRounding = 1e-9;  // 35 % of 100 are 35
  const double exact = percent * static_cast<double>(scores.size()) / 100.0;
  const auto count = std::min(static_cast<size_t>(exact + kRounding), scores.size());
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<bool> salient(scores.size());
  for (size_t rank = 0; rank < count; ++rank) {
    salient[order[rank]] = true;
  }
  return salient;
}

std::vector<uint8_t> AllocateBits(std::span<const double> errors, uint32_t max_bits, uint32_t total_bits) {
  const size_t num_pairs = errors.size() / max_bits;
  KVANT_CHECK(total_bits >= num_pairs && total_bits <= num_pairs * max_bits, "as many bits as can be given out");
  std::vector<uint8_t> bits(num_pairs, 1);
  for (auto left = static_cast<uint32_t>(total_bits - num_pairs); left > 0;) {
    size_t winner = 0;
    Step best;
    for (size_t pair = 0; pair < num_pairs; ++pair) {
      const Step step = BestStep(errors.subspan(pair * max_bits, max_bits), bits[pair], left);
      if (step.gain > best.gain) {
        best = step;
        winner = pair;
      }
    }
    KVANT_CHECK(best.bits > 0, "errors are numbers, and a pair has room");
    bits[winner] = static_cast<uint8_t>(bits[winner] + best.bits);
    left -= best.bits;
  }
  return bits;
}

WidthMap MakeWidthMap(const PairPrecision& precision, const PairStatistics& statistics, uint64_t seed) {
  const uint32_t num_pairs = statistics.num_pairs();
  if (precision.two_widths) {
    const PairPrecision::TwoWidths& widths = *precision.two_widths;
    const std::vector<bool> chosen =
        SelectSalient(PairScores(precision.score, widths, statistics, seed), widths.percent);
    const auto salient = std::make_unique<bool[]>(num_pairs);
    std::copy(chosen.begin(), chosen.end(), salient.get());
    return codec::TwoWidthMap(statistics.pairs(), widths.low, widths.high, std::span(salient.get(), num_pairs));
  }
  std::vector<double> errors;
  for (uint32_t pair = 0; pair < num_pairs; ++pair) {
    for (uint32_t bits = 1; bits <= WidthMap::kMaxKeyBits; ++bits) {
      errors.push_back(precision.score == PairScore::kEnergySum ? EnergyLeft(statistics, pair, bits)
                                                                : statistics.Error(pair, bits));
    }
  }
  constexpr double kRounding = 1e-9;
  const auto total = static_cast<uint32_t>(precision.bits * num_pairs + kRounding);
  return {statistics.pairs(), AllocateBits(errors, WidthMap::kMaxKeyBits, total)};
}

}  // namespace kvant::policy
