#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/bench/attend_job.h"
#include "kvant/cache/memory.h"
#include "kvant/cache/sequence.h"

namespace kvant::cli {

/// Layers of random keys and values in one precision, more of them than any cache holds: equal contents, each in
/// memory of its own.
class AttentionLayers {
 public:
  /// As many layers of `num_tokens` tokens as take `total_bytes`, at least two. A spectrum's tokens are given to tiers
  /// by an importance drawn at random, for each KV head, and pairs get their widths by random keys and queries: there
  /// is no prompt to measure them of.
  /// Errors  kOutOfMemory; kInvalidArgument, kModelUnsupported: pair pages that the shape cannot have
  static Result<AttentionLayers> Make(const codec::CacheShape& shape, const codec::Precision& precision,
                                      kernels::Isa isa, uint32_t num_tokens, uint64_t total_bytes,
                                      cache::MemoryAccount* account, ThreadPool* pool);

  const codec::Precision& precision() const { return precision_; }
  /// Of a spectrum, what of the encoded tokens lies where.
  codec::TierCounts tier_counts() const { return layers_.front().tier_counts(); }
  /// Attend to a layer's tokens, as many times over as a call is worth, on the next places in memory with every round.
  void Attend(AttendJob& job, uint32_t round) const;
  /// Attentions of one Attend.
  uint32_t places() const;
  /// What one attention meets.
  struct Load {
    uint64_t tokens = 0;
    uint64_t bytes = 0;  ///< stored for them
  };
  Load load() const;

 private:
  explicit AttentionLayers(const codec::Precision& precision) : precision_(precision) {}

  codec::Precision precision_;
  uint32_t num_kv_heads_ = 0;
  std::vector<cache::LayerCache> layers_;
};

/// A layer of random fp16 keys and values, nothing encoded yet; of pair pages with maps made of rows like its own.
/// Errors  those of AttentionLayers::Make
Result<cache::LayerCache> RandomLayer(const codec::CacheShape& shape, const codec::Precision& precision,
                                      kernels::Isa isa, uint32_t num_tokens, cache::MemoryAccount* account,
                                      ThreadPool* pool);

/// Hold attention over a small layer, with sinks, encoded tokens and residual, against kernels::AttendRef, and its pair
/// pages against those of the reference.
/// Errors  kInternal with the error found and the error allowed
Status CheckAttention(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa,
                      AttendJob& job, ThreadPool* pool);

}  // namespace kvant::cli
