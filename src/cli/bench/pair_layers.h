#pragma once

#include <vector>

#include "cli/bench/attention_layers.h"
#include "kvant/base/buffer.h"
#include "kvant/codec/pair_precision.h"
#include "kvant/kernels/pair_pages.h"

namespace kvant::cli {

/// The random keys and values that pages are packed from: channels of different spread, as models have them.
struct PairRows {
  std::vector<Half> keys;  ///< [page_tokens, head_dim]
  std::vector<Half> values;
};
PairRows RandomPairRows(uint32_t head_dim, uint32_t page_tokens, uint32_t seed);

/// The map that `precision` makes of random keys and queries like those.
codec::WidthMap RandomWidthMap(const codec::PairPrecision& precision, uint32_t head_dim, uint32_t seed);

/// One layer's pages of pair-mixed codes, without sinks and residual. Pages repeat, the memory does not.
class PairLayer {
 public:
  uint32_t num_chunks() const;
  cache::ChunkSlices Chunk(uint32_t kv_head, uint32_t chunk) const;

 private:
  friend class PairLayers;
  uint32_t num_tokens_ = 0;
  bool rotated_ = false;
  const std::vector<kernels::PairPlan>* plans_ = nullptr;  ///< [kv_head]
  Buffer memory_;
  std::vector<std::vector<const std::byte*>> pages_;  ///< [kv_head][page]
};

/// AttentionLayers of pair pages.
class PairLayers {
 public:
  /// Errors  kOutOfMemory; kInvalidArgument, kModelUnsupported: a precision that the shape cannot have
  static Result<PairLayers> Make(const codec::CacheShape& shape, const codec::PairPrecision& precision,
                                 kernels::Isa isa, uint32_t num_tokens, uint64_t total_bytes, ThreadPool* pool);

  void Attend(AttendJob& job, uint32_t num_tokens, uint32_t round) const;
  AttentionLayers::Load LoadOf(uint32_t num_tokens) const;
  const PairLayer& layer(size_t index) const { return layers_[index]; }

 private:
  uint32_t ChunksOf(uint32_t num_tokens) const;
  Result<PairLayer> MakeLayer(uint32_t num_tokens, const std::vector<std::vector<std::byte>>& pages) const;

  bool rotated_ = false;
  std::unique_ptr<std::vector<kernels::PairPlan>> plans_;
  std::vector<PairLayer> layers_;
};

/// Hold attention over pages against kernels::AttendRef.
/// Errors  kInternal with the error found and the error allowed
Status CheckPairAttention(const codec::CacheShape& shape, const codec::PairPrecision& precision, kernels::Isa isa,
                          AttendJob& job, ThreadPool* pool);

}  // namespace kvant::cli
