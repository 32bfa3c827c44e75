#include "engine/pair_maps.h"

#include <algorithm>
#include <vector>

#include "kvant/base/check.h"
#include "kvant/policy/pair_map.h"

namespace kvant::engine {
namespace {

// Keys as the pages will hold them: what each width loses is measured a page at a time.
void AddKeys(const cache::LayerCache& cache, uint32_t kv_head, policy::PairStatistics& statistics) {
  const codec::PairPrecision& precision = *cache.precision().pairs;
  const uint32_t head_dim = cache.shape().head_dim;
  const uint32_t count = cache.split().num_tail;
  std::vector<Half> keys(size_t{precision.page_tokens} * head_dim);
  const uint32_t unreachable = cache.num_unreachable() - std::min(cache.num_unreachable(), cache.split().num_sinks);
  for (uint32_t first = unreachable; first < count; first += precision.page_tokens) {
    const uint32_t rows = std::min(precision.page_tokens, count - first);
    cache.LoadResidualKeys(kv_head, first, rows, keys.data());
    statistics.AddKeys(keys.data(), rows, head_dim);
    if (precision.score == codec::PairScore::kError) {
      statistics.AddKeyErrors(precision.KeyRuleOf(), keys.data(), rows, head_dim);
    }
  }
}

}  // namespace

Status ChoosePairMaps(uint32_t layer, const LayerStatistics& statistics, ThreadPool* pool, cache::LayerCache& cache) {
  const codec::PairPrecision& precision = *cache.precision().pairs;
  const uint32_t num_heads = cache.shape().num_kv_heads;
  KVANT_CHECK(statistics.pairs.size() == num_heads, "statistics of every KV head");
  std::vector<codec::WidthMap> maps(num_heads);
  pool->ParallelFor(num_heads, [&](size_t head, int) {
    policy::PairStatistics of_head = statistics.pairs[head];
    AddKeys(cache, static_cast<uint32_t>(head), of_head);
    maps[head] = policy::MakeWidthMap(precision, of_head, uint64_t{layer} * num_heads + head);
  });
  cache.SetPairMaps(statistics.pairs.front().pairs(), maps);
  return OkStatus();
}

}  // namespace kvant::engine
