#pragma once

#include <cstdint>

#include "kvant/base/status.h"
#include "kvant/codec/tiers.h"

namespace kvant::policy {

using codec::kNumTiers;
using codec::Tier;
using codec::TierCounts;

/// Cost of a token relative to fp16, the unit of a budget (SpectrumKV section 3). Scales are not in it: what a tier
/// takes in bytes is codec::RowBytes.
constexpr double RelativeCost(Tier tier) {
  return tier == Tier::kFp16 ? 1.0 : tier == Tier::kInt8 ? 0.5 : tier == Tier::kInt4 ? 0.25 : 0.0;
}

/// Mean relative cost of a token; 0 for no tokens.
double BudgetOf(const TierCounts& counts);

/// Rules from a budget to counts. Products are truncated as the authors' code does it (methods.md 3.12, and its table
/// for n = 2048).
enum class BudgetRule : uint8_t {
  kGreedy,    ///< as many int8 as fit, then fp16 of them; the rest int4
  kBalanced,  ///< the surplus over int4 split 1 : 2 between fp16 and int8
  kAdaptive,  ///< without int4: fp16 and int8, and below one half int8 and dropped
};

/// Requires num_tokens any; budget from 0.25 to 1, for kAdaptive from 0 to 1
/// Errors   kInvalidArgument names the budget and the range
Result<TierCounts> CountsOf(BudgetRule rule, double budget, uint32_t num_tokens);

}  // namespace kvant::policy
