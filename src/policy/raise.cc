#include "kvant/policy/raise.h"

#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/policy/assign.h"

namespace kvant::policy {
namespace {

using codec::Tier;

// The first `count` tokens of a tier by mass become another.
void Move(Tier from, Tier to, uint32_t count, std::span<const uint32_t> ranking, std::vector<Tier>& ids) {
  for (const uint32_t token : ranking) {
    if (count > 0 && ids[token] == from) {
      ids[token] = to;
      --count;
    }
  }
}

uint32_t Missing(uint32_t target, uint32_t present) { return target - std::min(target, present); }

}  // namespace

std::vector<Tier> RaiseTo(const codec::TierCounts& target, std::span<const Tier> ids, std::span<const float> mass) {
  KVANT_CHECK(ids.size() == mass.size(), "a mass a token");
  const std::vector<uint32_t> ranking = RankByImportance(mass);
  std::vector<Tier> raised(ids.begin(), ids.end());
  const codec::TierCounts before = codec::CountTiers(ids);
  const uint32_t to_fp16 = Missing(target.fp16, before.fp16);
  const uint32_t from_int8 = std::min(to_fp16, before.int8);
  Move(Tier::kInt8, Tier::kFp16, from_int8, ranking, raised);
  Move(Tier::kInt4, Tier::kFp16, to_fp16 - from_int8, ranking, raised);
  Move(Tier::kInt4, Tier::kInt8, Missing(target.int8, before.int8 - from_int8), ranking, raised);
  return raised;
}

}  // namespace kvant::policy
