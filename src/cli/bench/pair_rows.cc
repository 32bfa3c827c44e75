#include "cli/bench/pair_rows.h"

#include <cmath>

#include "cli/bench/memory.h"
#include "kvant/policy/pair_map.h"

namespace kvant::cli {
namespace {

constexpr uint32_t kQueryRows = 64;

std::vector<float> Spread(uint32_t head_dim, uint32_t seed) {
  std::vector<float> spread(head_dim);
  ToFloat(RandomHalves(head_dim, 0.5F, seed), spread);
  for (float& x : spread) {
    x = std::exp(x);
  }
  return spread;
}

}  // namespace

PairRows RandomPairRows(uint32_t head_dim, uint32_t num_tokens, uint32_t seed) {
  const size_t count = size_t{num_tokens} * head_dim;
  PairRows rows{RandomHalves(count, 1.0F, seed + 100), RandomHalves(count, 1.0F, seed + 200)};
  const std::vector<float> spread = Spread(head_dim, 1);
  for (size_t i = 0; i < count; ++i) {
    rows.keys[i] = ToHalf(ToFloat(rows.keys[i]) * spread[i % head_dim]);
  }
  return rows;
}

Result<codec::WidthMap> RandomWidthMap(const codec::PairPrecision& precision, uint32_t head_dim, uint32_t seed) {
  policy::PairStatistics statistics(codec::PairLayout::kHalfSplit, head_dim);
  const PairRows rows = RandomPairRows(head_dim, precision.page_tokens, seed);
  statistics.AddKeys(rows.keys.data(), precision.page_tokens, head_dim);
  statistics.AddKeyErrors(precision.KeyRuleOf(), rows.keys.data(), precision.page_tokens, head_dim);
  std::vector<float> queries(size_t{kQueryRows} * head_dim);
  ToFloat(RandomHalves(queries.size(), 1.0F, seed + 300), queries);
  const std::vector<float> spread = Spread(head_dim, seed + 2);
  for (size_t i = 0; i < queries.size(); ++i) {
    queries[i] *= spread[i % head_dim];
  }
  statistics.AddQueries(queries.data(), kQueryRows, head_dim);
  codec::WidthMap map = policy::MakeWidthMap(precision, statistics, seed);
  KVANT_RETURN_IF_ERROR(codec::CheckPairFormat(precision.FormatOf(head_dim), map));
  return map;
}

}  // namespace kvant::cli
