#pragma once

#include <gtest/gtest.h>

#include "kvant/cache/sequence.h"
#include "support/block_reference.h"

namespace kvant::cache {

/// `count` tokens more, at fp16: test::MakeRows of `seed`.
inline void AppendRows(LayerCache& cache, uint32_t count, uint64_t seed) {
  const uint32_t first = cache.num_tokens();
  ASSERT_TRUE(cache.ExtendExact(count).ok());
  const test::LayerRows rows = test::MakeRows(cache.shape(), count, seed);
  for (uint32_t head = 0; head < cache.shape().num_kv_heads; ++head) {
    cache.StoreExact(head, first, count, &rows.keys[rows.Row(head, 0)], &rows.values[rows.Row(head, 0)],
                     cache.shape().head_dim);
  }
}

}  // namespace kvant::cache
