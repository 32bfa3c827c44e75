#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kvant/codec/equalization.h"
#include "kvant/kernels/attend.h"

namespace kvant::kernels {

/// What the tokens of one segment look like.
struct SegmentSpec {
  codec::TokenCodec codec = codec::TokenCodec::kFp16;
  uint32_t head_dim = 64;
  uint32_t num_tokens = 1;
  bool equalized = false;
  float key_offset = 0.0F;  ///< added to every fourth channel of the keys
  uint32_t page_tokens = 128;
  int32_t first_position = 0;
  uint32_t position_step = 1;  ///< above 1 the tokens stand apart, at positions given one by one
};

/// Random keys and values, encoded and stored by the scalar references, with records at an offset in their pages.
class RandomSegment {
 public:
  RandomSegment(const SegmentSpec& spec, uint32_t seed);

  AttendSegment view() const;
  AttendSlice Slice(uint32_t first_token, uint32_t num_tokens) const { return {view(), first_token, num_tokens}; }
  AttendSlice All() const { return Slice(0, spec_.num_tokens); }

 private:
  struct PageFree {
    void operator()(std::byte* page) const { ::operator delete[](page, std::align_val_t{64}); }
  };

  void Equalize(std::vector<Half>& keys);
  void Store(const std::vector<Half>& keys, const std::vector<Half>& values);

  SegmentSpec spec_;
  codec::TokenPageLayout layout_;
  codec::Equalization map_;
  std::vector<std::unique_ptr<std::byte[], PageFree>> pages_;
  std::vector<const std::byte*> page_pointers_;
  std::vector<int32_t> positions_;
};

/// Random query rows with their positions.
class RandomQueries {
 public:
  RandomQueries(uint32_t head_dim, uint32_t q_heads_per_kv_head, std::vector<int32_t> positions, uint32_t seed);

  AttendQueries view() const { return Part(0, static_cast<uint32_t>(positions_.size())); }
  AttendQueries Part(uint32_t first_query, uint32_t num_queries) const;

 private:
  uint32_t head_dim_;
  uint32_t q_heads_per_kv_head_;
  size_t query_stride_;
  std::vector<int32_t> positions_;
  std::vector<float> data_;
};

/// AttendChunk's results in memory of their own.
struct ChunkResult {
  std::vector<float> out;
  std::vector<float> max;
  std::vector<float> sum;
};
ChunkResult RunChunk(Isa isa, const AttendQueries& queries, std::span<const AttendSlice> chunk);

/// One chunk, merged: the attention output of every row.
std::vector<float> AttendAll(Isa isa, const AttendQueries& queries, std::span<const AttendSlice> chunk);
std::vector<float> AttendAllRef(const AttendQueries& queries, std::span<const AttendSlice> chunk);

/// The attention weights of one row, in double. Shapes  [tokens it sees]
std::vector<double> WeightsRef(const AttendQueries& queries, uint32_t row, const AttendSlice& slice);

/// Largest difference over the largest magnitude of `expected`.
double RelativeError(const std::vector<float>& got, const std::vector<float>& expected);

}  // namespace kvant::kernels
