#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvant/base/thread_pool.h"
#include "kvant/cache/sequence.h"

namespace kvant::cli {

/// Attention of one query token over layers, split over threads much as the engine splits a decode step: runs of a KV
/// head's chunks are handed out, and who finishes a head's last chunk merges them.
///
/// Threads  one caller
class AttendJob {
 public:
  AttendJob(kernels::Isa isa, const codec::CacheShape& shape, uint32_t num_q_heads, ThreadPool* pool);

  /// Where an attention begins in a layer.
  struct Place {
    const cache::LayerCache* layer;
    uint32_t first_chunk;
  };
  /// Attend to `num_chunks` chunks at each place, one attention a place; the query stands after all tokens. Several
  /// places in one call weigh the pool's waking up less, which in the engine happens once a step, not once a layer.
  void Run(std::span<const Place> places, uint32_t num_chunks);

  /// The query's part that meets a KV head.
  kernels::AttendQueries QueriesOf(uint32_t kv_head) const;
  /// Shapes  [num_q_heads, head_dim], of the last Run's last place
  std::span<const float> output() const { return std::span(outputs_).last(query_.size()); }

 private:
  /// A group is a KV head at a place.
  kernels::AttendPartial PartialOf(size_t group, uint32_t chunk);
  void Merge(size_t group);

  kernels::Isa isa_;
  codec::CacheShape shape_;
  uint32_t q_heads_per_kv_head_;
  ThreadPool* pool_;
  int32_t position_ = INT32_MAX;
  std::vector<float> query_;    ///< [num_q_heads, head_dim]
  std::vector<float> outputs_;  ///< [places, num_q_heads, head_dim]
  uint32_t num_chunks_ = 0;
  std::vector<float> partials_;                 ///< [places, num_kv_heads, num_chunks]: out, max, sum of a head's rows
  std::vector<std::atomic<uint32_t>> pending_;  ///< chunks of each group
  std::vector<kernels::AttendScratch> scratch_;
};

}  // namespace kvant::cli
