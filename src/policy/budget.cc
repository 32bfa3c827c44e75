#include "kvant/policy/budget.h"

#include <algorithm>
#include <string>

namespace kvant::policy {
namespace {

uint32_t Truncated(double value) { return value <= 0 ? 0 : static_cast<uint32_t>(value); }

TierCounts Greedy(double budget, uint32_t n) {
  double surplus = (budget - 0.25) * n;
  const uint32_t above_int4 = std::min(n, Truncated(surplus / 0.25));
  surplus -= 0.25 * above_int4;
  const uint32_t fp16 = std::min(above_int4, Truncated(surplus / 0.5 + 0.5));
  return {fp16, above_int4 - fp16, n - above_int4, 0};
}

TierCounts Balanced(double budget, uint32_t n) {
  const double surplus = 4 * budget - 1;
  double fp16 = surplus / 5;
  double int8 = 2 * surplus / 5;
  if (fp16 + int8 > 1) {
    fp16 = 2 * budget - 1;
    int8 = 1 - fp16;
  }
  TierCounts counts{Truncated(fp16 * n), Truncated(int8 * n), 0, 0};
  counts.int4 = n - counts.fp16 - counts.int8;
  return counts;
}

TierCounts Adaptive(double budget, uint32_t n) {
  if (budget < 0.5) {
    const uint32_t int8 = Truncated(2 * budget * n);
    return {0, int8, 0, n - int8};
  }
  const uint32_t fp16 = Truncated((2 * budget - 1) * n);
  return {fp16, n - fp16, 0, 0};
}

}  // namespace

double BudgetOf(const TierCounts& counts) {
  if (counts.total() == 0) {
    return 0;
  }
  const double cost = counts.fp16 * RelativeCost(Tier::kFp16) + counts.int8 * RelativeCost(Tier::kInt8) +
                      counts.int4 * RelativeCost(Tier::kInt4);
  return cost / counts.total();
}

Result<TierCounts> CountsOf(BudgetRule rule, double budget, uint32_t num_tokens) {
  const double lowest = rule == BudgetRule::kAdaptive ? 0.0 : 0.25;
  if (!(budget >= lowest && budget <= 1.0)) {
    return Status(StatusCode::kInvalidArgument,
                  "a budget of " + std::to_string(budget) + " is not from " + (lowest == 0 ? "0" : "0.25") + " to 1");
  }
  switch (rule) {
    case BudgetRule::kGreedy: return Greedy(budget, num_tokens);
    case BudgetRule::kBalanced: return Balanced(budget, num_tokens);
    case BudgetRule::kAdaptive: return Adaptive(budget, num_tokens);
  }
  return Status(StatusCode::kInternal, "an unknown budget rule");
}

}  // namespace kvant::policy
