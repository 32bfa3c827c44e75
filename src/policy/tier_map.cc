#include "kvant/policy/tier_map.h"

#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/policy/assign.h"
#include "kvant/policy/budget.h"
#include "kvant/policy/importance.h"

namespace kvant::policy {
namespace {

using codec::Importance;
using codec::Spectrum;
using codec::TierRule;

constexpr uint32_t kProtectedSinks = 4;  // of SinkProtect
constexpr uint64_t kRandomSeed = 42;     // the authors'

BudgetRule BudgetRuleOf(TierRule rule) {
  return rule == TierRule::kBalanced || rule == TierRule::kBalancedEven ? BudgetRule::kBalanced
         : rule == TierRule::kAdaptive                                  ? BudgetRule::kAdaptive
                                                                        : BudgetRule::kGreedy;
}

// The importance of one head's tokens, decay included.
std::vector<float> ImportanceOf(const Spectrum& spectrum, const TierRequest& request, uint32_t row) {
  std::vector<float> importance;
  if (spectrum.importance == Importance::kPosition) {
    importance = PositionImportance(request.first_position + request.num_tokens);
    importance.erase(importance.begin(), importance.begin() + request.first_position);
  } else {
    importance = request.importance[row];
  }
  KVANT_CHECK(importance.size() == request.num_tokens, "an importance a token");
  ApplyRecencyDecay(spectrum.decay, importance);
  return importance;
}

std::vector<Tier> SelectTiers(const Spectrum& spectrum, const std::vector<float>& importance) {
  const Selection selection = spectrum.rule == TierRule::kSws         ? Selection::kSws
                              : spectrum.rule == TierRule::kSwsPrefix ? Selection::kSwsPrefix
                              : spectrum.first                        ? Selection::kPdTrimFirstLast
                                                                      : Selection::kPdTrimSuffix;
  return Select(selection, spectrum.budget, spectrum.first.value_or(0), importance);
}

Result<std::vector<Tier>> TiersOf(const Spectrum& spectrum, const TierRequest& request, uint32_t row) {
  const std::vector<float> importance =
      codec::RanksTokens(spectrum.rule) ? ImportanceOf(spectrum, request, row) : std::vector<float>(request.num_tokens);
  if (codec::IsSelection(spectrum.rule)) {
    return SelectTiers(spectrum, importance);
  }
  KVANT_ASSIGN_OR_RETURN(const TierCounts counts,
                         CountsOf(BudgetRuleOf(spectrum.rule), spectrum.budget, request.num_tokens));
  if (spectrum.rule == TierRule::kBalancedEven) {
    return AssignEvenly(counts);
  }
  std::vector<uint32_t> ranking =
      spectrum.rule == TierRule::kRandom ? RankAtRandom(request.num_tokens, kRandomSeed) : RankByImportance(importance);
  const uint32_t pinned =
      spectrum.rule == TierRule::kSinkProtect
          ? std::min(request.num_tokens, kProtectedSinks - std::min(kProtectedSinks, request.first_position))
          : 0;
  // First in rank as well, as they are in the authors' ranking: so that every head has the same counts.
  std::vector<Tier> tiers = AssignByRank(counts, SinksFirst(pinned, ranking));
  PinSinks(pinned, tiers);
  return tiers;
}

}  // namespace

bool ReadsAttention(const Spectrum& spectrum) {
  return codec::RanksTokens(spectrum.rule) &&
         (spectrum.importance == Importance::kAttention || spectrum.importance == Importance::kSampled);
}

bool ReadsNorms(const Spectrum& spectrum) {
  return codec::RanksTokens(spectrum.rule) && spectrum.importance == Importance::kNorm;
}

Result<codec::TierCounts> CountsAt(const Spectrum& spectrum, double budget, uint32_t num_tokens) {
  return CountsOf(BudgetRuleOf(spectrum.rule), budget, num_tokens);
}

Result<codec::TierMap> MakeTierMap(const Spectrum& spectrum, const TierRequest& request) {
  codec::TierMap map;
  const bool shared = !ReadsAttention(spectrum) && !ReadsNorms(spectrum);
  const size_t rows = shared ? 1 : request.importance.size();
  KVANT_CHECK(rows == 1 || rows == request.num_kv_heads, "a ranking a KV head, or one for all");
  std::vector<Tier> tiers;
  for (uint32_t kv_head = 0; kv_head < request.num_kv_heads; ++kv_head) {
    if (kv_head < rows) {
      KVANT_ASSIGN_OR_RETURN(tiers, TiersOf(spectrum, request, kv_head));
    }
    const TierCounts counts = codec::CountTiers(tiers);
    KVANT_CHECK(kv_head == 0 || counts == map.counts, "heads differ in tokens, not in counts");
    map.counts = counts;
    map.ids.insert(map.ids.end(), tiers.begin(), tiers.end());
  }
  return map;
}

}  // namespace kvant::policy
