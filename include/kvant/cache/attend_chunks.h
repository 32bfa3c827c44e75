#pragma once

#include "kvant/cache/sequence.h"

namespace kvant::cache {

/// Attend with `rows` to chunks [first, first + count) of a KV head, each while the next one's beginning is fetched.
/// partial_of(chunk) says where a chunk's result goes. Requires count >= 1.
template <typename PartialOf>
void AttendChunks(const LayerCache& cache, uint32_t kv_head, uint32_t first, uint32_t count,
                  kernels::RowAttention& rows, const PartialOf& partial_of) {
  ChunkSlices chunk = cache.Chunk(kv_head, first);
  for (uint32_t i = first; i + 1 < first + count; ++i) {
    const ChunkSlices next = cache.Chunk(kv_head, i + 1);
    rows.Attend(chunk.span(), next.count > 0 ? next.slices.data() : nullptr, partial_of(i));
    chunk = next;
  }
  rows.Attend(chunk.span(), nullptr, partial_of(first + count - 1));
}

}  // namespace kvant::cache
