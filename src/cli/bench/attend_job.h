#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvant/base/thread_pool.h"
#include "kvant/cache/sequence.h"

namespace kvant::cli {

/// Attention of one query token over one layer, split over threads as the engine splits a decode step: chunks of a KV
/// head are handed out one by one, and who finishes a head's last chunk merges them.
///
/// Threads  one caller
class AttendJob {
 public:
  AttendJob(kernels::Isa isa, const codec::CacheShape& shape, uint32_t num_q_heads, ThreadPool* pool);

  /// Attend to `num_chunks` chunks of a layer from `first_chunk` on; the query stands after all tokens.
  void Run(const cache::LayerCache& cache, uint32_t first_chunk, uint32_t num_chunks);

  /// The query's part that meets a KV head.
  kernels::AttendQueries QueriesOf(uint32_t kv_head) const;
  /// Shapes  [num_q_heads, head_dim], of the last Run
  std::span<const float> output() const { return output_; }

 private:
  kernels::AttendPartial PartialOf(uint32_t kv_head, uint32_t chunk);
  void Merge(uint32_t kv_head);

  kernels::Isa isa_;
  codec::CacheShape shape_;
  uint32_t q_heads_per_kv_head_;
  ThreadPool* pool_;
  int32_t position_ = INT32_MAX;
  std::vector<float> query_;   ///< [num_q_heads, head_dim]
  std::vector<float> output_;
  uint32_t num_chunks_ = 0;
  std::vector<float> partials_;  ///< [num_kv_heads, num_chunks]: out, max, sum of a head's rows
  std::vector<std::atomic<uint32_t>> pending_;
  std::vector<kernels::AttendScratch> scratch_;
};

}  // namespace kvant::cli
