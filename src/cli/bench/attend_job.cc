#include "cli/bench/attend_job.h"

#include <algorithm>
#include <cmath>

#include "cli/bench/memory.h"
#include "kvant/cache/attend_chunks.h"

namespace kvant::cli {
namespace {

constexpr float kQueryDeviation = 2.0F;  // logits then spread enough for some tokens to count more than others
constexpr uint32_t kChunksOfRun = 4;     // of one KV head that a thread takes at once

}  // namespace

AttendJob::AttendJob(kernels::Isa isa, const codec::CacheShape& shape, uint32_t num_q_heads, ThreadPool* pool)
    : isa_(isa),
      shape_(shape),
      q_heads_per_kv_head_(num_q_heads / shape.num_kv_heads),
      pool_(pool),
      query_(size_t{num_q_heads} * shape.head_dim),
      scratch_(static_cast<size_t>(pool->num_threads())) {
  ToFloat(RandomHalves(query_.size(), kQueryDeviation, 2), query_);
}

kernels::AttendQueries AttendJob::QueriesOf(uint32_t kv_head) const {
  kernels::AttendQueries queries;
  queries.data = query_.data() + size_t{kv_head} * q_heads_per_kv_head_ * shape_.head_dim;
  queries.query_stride = query_.size();
  queries.head_stride = shape_.head_dim;
  queries.num_queries = 1;
  queries.q_heads_per_kv_head = q_heads_per_kv_head_;
  queries.head_dim = shape_.head_dim;
  queries.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  queries.positions = {&position_, 1};
  return queries;
}

void AttendJob::Run(std::span<const Place> places, uint32_t num_chunks) {
  num_chunks_ = num_chunks;
  const size_t num_groups = places.size() * shape_.num_kv_heads;
  const size_t partial_floats = size_t{q_heads_per_kv_head_} * (shape_.head_dim + 2);
  partials_.resize(std::max(partials_.size(), partial_floats * num_groups * num_chunks));
  outputs_.resize(places.size() * query_.size());
  if (pending_.size() < num_groups) {
    pending_ = std::vector<std::atomic<uint32_t>>(num_groups);
  }
  std::fill_n(pending_.begin(), num_groups, num_chunks);
  const auto runs = static_cast<uint32_t>(CeilDiv(num_chunks, kChunksOfRun));
  pool_->ParallelFor(num_groups * runs, [&](size_t index, int thread) {
    const size_t group = index / runs;
    const auto first = static_cast<uint32_t>(index % runs) * kChunksOfRun;
    const uint32_t count = std::min(kChunksOfRun, num_chunks - first);
    const auto kv_head = static_cast<uint32_t>(group % shape_.num_kv_heads);
    const Place& place = places[group / shape_.num_kv_heads];
    kernels::RowAttention rows(isa_, QueriesOf(kv_head), scratch_[static_cast<size_t>(thread)]);
    cache::AttendChunks(*place.layer, kv_head, place.first_chunk + first, count, rows,
                        [&](uint32_t chunk) { return PartialOf(group, chunk - place.first_chunk); });
    if (pending_[group].fetch_sub(count, std::memory_order_acq_rel) == count) {
      Merge(group);
    }
  });
}

kernels::AttendPartial AttendJob::PartialOf(size_t group, uint32_t chunk) {
  const size_t rows = q_heads_per_kv_head_;
  float* out = partials_.data() + (group * num_chunks_ + chunk) * rows * (shape_.head_dim + 2);
  float* max = out + rows * shape_.head_dim;
  return {out, max, max + rows};
}

void AttendJob::Merge(size_t group) {
  std::vector<const float*> outs(num_chunks_);
  std::vector<float> maxes(num_chunks_);
  std::vector<float> sums(num_chunks_);
  for (uint32_t row = 0; row < q_heads_per_kv_head_; ++row) {
    for (uint32_t chunk = 0; chunk < num_chunks_; ++chunk) {
      const kernels::AttendPartial partial = PartialOf(group, chunk);
      outs[chunk] = partial.out + size_t{row} * shape_.head_dim;
      maxes[chunk] = partial.max[row];
      sums[chunk] = partial.sum[row];
    }
    const size_t head = group * q_heads_per_kv_head_ + row;
    kernels::MergePartials(outs, maxes, sums, std::span(outputs_).subspan(head * shape_.head_dim, shape_.head_dim));
  }
}

}  // namespace kvant::cli
