#include "kvant/policy/assign.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kvant/base/check.h"

namespace kvant::policy {
namespace {

constexpr uint32_t kSelectionSinks = 4;

std::vector<uint32_t> Identity(uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

void Keep(std::span<Tier> tiers, size_t first, size_t count) {
  for (size_t i = first; i < std::min(first + count, tiers.size()); ++i) {
    tiers[i] = Tier::kFp16;
  }
}

}  // namespace

std::vector<uint32_t> RankByImportance(std::span<const float> importance) {
  std::vector<uint32_t> order = Identity(static_cast<uint32_t>(importance.size()));
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
  return order;
}

std::vector<uint32_t> RankAtRandom(uint32_t num_tokens, uint64_t seed) {
  std::vector<uint32_t> order = Identity(num_tokens);
  for (uint32_t i = num_tokens; i > 1; --i) {
    // Fisher and Yates; the bias of a 64-bit remainder over fewer than 2^32 tokens is below 2^-32.
    std::swap(order[i - 1], order[SplitMix(&seed) % i]);
  }
  return order;
}

std::vector<Tier> AssignByRank(const TierCounts& counts, std::span<const uint32_t> ranking) {
  KVANT_CHECK(counts.total() == ranking.size(), "a rank for each token");
  std::vector<Tier> tiers(ranking.size(), Tier::kDropped);
  size_t rank = 0;
  const auto give = [&](Tier tier, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      tiers[ranking[rank++]] = tier;
    }
  };
  give(Tier::kFp16, counts.fp16);
  give(Tier::kInt8, counts.int8);
  give(Tier::kInt4, counts.int4);
  return tiers;
}

std::vector<Tier> AssignEvenly(const TierCounts& counts) {
  // Each token goes to the tier that is furthest behind its share of the tokens so far; ties to the better tier.
  const uint32_t wanted[kNumTiers] = {counts.fp16, counts.int8, counts.int4, counts.dropped};
  uint64_t given[kNumTiers] = {};
  std::vector<Tier> tiers(counts.total());
  for (uint64_t i = 0; i < tiers.size(); ++i) {
    const auto behind = [&](uint32_t tier) {
      return static_cast<int64_t>(wanted[tier] * (i + 1)) - static_cast<int64_t>(given[tier] * tiers.size());
    };
    uint32_t best = 0;
    for (uint32_t tier = 1; tier < kNumTiers; ++tier) {
      best = behind(tier) > behind(best) ? tier : best;
    }
    tiers[i] = static_cast<Tier>(best);
    ++given[best];
  }
  return tiers;
}

void PinSinks(uint32_t num_sinks, std::span<Tier> tiers) { Keep(tiers, 0, num_sinks); }

std::vector<uint32_t> SinksFirst(uint32_t num_sinks, std::span<const uint32_t> ranking) {
  std::vector<uint32_t> order(ranking.begin(), ranking.end());
  std::stable_partition(order.begin(), order.end(), [&](uint32_t token) { return token < num_sinks; });
  return order;
}

std::vector<Tier> Select(Selection selection, double budget, double first_ratio, std::span<const float> importance) {
  const size_t n = importance.size();
  // int(n · budget · ratio), multiplied in this order as in the authors' code.
  const auto part = [&](double ratio) {
    return std::min(n, static_cast<size_t>(static_cast<double>(n) * budget * ratio));
  };
  std::vector<Tier> tiers(n, Tier::kDropped);
  const size_t kept = std::min(n, std::max<size_t>(part(1), kSelectionSinks + 1));
  switch (selection) {
    case Selection::kPdTrimSuffix:
      Keep(tiers, 0, kSelectionSinks);
      Keep(tiers, n - (kept - std::min<size_t>(kept, kSelectionSinks)), n);
      break;
    case Selection::kPdTrimFirstLast:
      Keep(tiers, 0, part(first_ratio));
      Keep(tiers, n - part(1 - first_ratio), n);
      break;
    case Selection::kSws: {
      const std::vector<uint32_t> order = SinksFirst(kSelectionSinks, RankByImportance(importance));
      for (size_t rank = 0; rank < kept; ++rank) {
        tiers[order[rank]] = Tier::kFp16;
      }
      break;
    }
    case Selection::kSwsPrefix: Keep(tiers, 0, std::max<size_t>(part(1), 16)); break;
  }
  return tiers;
}

}  // namespace kvant::policy
