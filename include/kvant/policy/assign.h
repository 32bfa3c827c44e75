#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/policy/budget.h"

namespace kvant::policy {

/// Token indices by falling importance; equal ones by rising index.
/// Requires importance without NaN
std::vector<uint32_t> RankByImportance(std::span<const float> importance);

/// A random order, the same for the same seed.
std::vector<uint32_t> RankAtRandom(uint32_t num_tokens, uint64_t seed);

/// The best-ranked tokens get fp16, the next int8, the next int4, the rest are dropped.
/// Requires ranking a permutation of counts.total() tokens
std::vector<Tier> AssignByRank(const TierCounts& counts, std::span<const uint32_t> ranking);

/// Each tier spread evenly over the positions, whatever their importance ("Balanced" as the paper's text has it; the
/// authors' code ranks).
std::vector<Tier> AssignEvenly(const TierCounts& counts);

/// The first `num_sinks` tokens to fp16, over the budget by what they cost more (SinkProtect in the authors' code).
void PinSinks(uint32_t num_sinks, std::span<Tier> tiers);

/// The same within the budget: the sinks' ranks come first, whatever their importance (SinkProtect in the paper's
/// text, "pinned before ranking"). Requires ranking a permutation
std::vector<uint32_t> SinksFirst(uint32_t num_sinks, std::span<const uint32_t> ranking);

/// Selections of the compared papers: kept tokens at fp16, the others dropped (methods.md 3.11, 3.12).
/// Requires budget from 0 to 1 (CountsOf's caller has checked it)
enum class Selection : uint8_t {
  kPdTrimSuffix,     ///< sinks 0…3 and the last k - 4, k = max(int(n·b), 5)      (SpectrumKV's tables)
  kPdTrimFirstLast,  ///< the first int(n·b·first_ratio) and last int(n·b·(1 - first_ratio))
  kSws,              ///< sinks 0…3 and the k - 4 best by importance
  kSwsPrefix,        ///< 16 sinks and pure decay with position: a prefix of max(int(n·b), 16)
};
std::vector<Tier> Select(Selection selection, double budget, double first_ratio, std::span<const float> importance);

}  // namespace kvant::policy
