#pragma once

#include <cmath>
#include <vector>

#include "kvant/cache/sequence.h"

namespace kvant::cache {

/// Every slice of a KV head, in order.
inline std::vector<kernels::AttendSlice> AllSlices(const LayerCache& cache, uint32_t head) {
  std::vector<kernels::AttendSlice> slices;
  for (uint32_t chunk = 0; chunk < cache.num_chunks(); ++chunk) {
    const ChunkSlices part = cache.Chunk(head, chunk);
    slices.insert(slices.end(), part.span().begin(), part.span().end());
  }
  return slices;
}

/// A query row that depends on nothing but its length.
inline std::vector<float> SomeQuery(uint32_t head_dim) {
  std::vector<float> q(head_dim);
  for (size_t c = 0; c < q.size(); ++c) {
    q[c] = std::sin(static_cast<float>(c) + 1.0F) * 0.3F;
  }
  return q;
}

/// Attention of one query after all tokens, over everything stored, by the reference.
inline std::vector<float> AttendToAll(const LayerCache& cache, uint32_t head) {
  const uint32_t head_dim = cache.shape().head_dim;
  const std::vector<float> q = SomeQuery(head_dim);
  const auto position = static_cast<int32_t>(cache.num_tokens());
  kernels::AttendQueries queries;
  queries.data = q.data();
  queries.num_queries = 1;
  queries.q_heads_per_kv_head = 1;
  queries.head_dim = head_dim;
  queries.scale = 0.2F;
  queries.positions = std::span(&position, 1);
  std::vector<float> out(head_dim);
  kernels::AttendRef(queries, AllSlices(cache, head), out);
  return out;
}

}  // namespace kvant::cache
