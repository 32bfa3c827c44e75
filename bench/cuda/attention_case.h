#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvant/kernels/cuda/decode.h"
#include "kvant/kernels/cuda/decode_plan.h"
#include "kvant/kernels/cuda/device_layout.h"

/// A batch of sequences in any mix of formats, its pages on the host, and what attention over it must give.
namespace kvant::cuda_test {

using kernels::cuda::DecodeFormat;
using kernels::cuda::DecodeSegment;
using kernels::cuda::DecodeShape;

struct SegmentSpec {
  DecodeFormat format = DecodeFormat::kFp16;
  uint32_t num_tokens = 0;
  uint32_t first_visible = 0;
};

struct CaseSpec {
  std::string name;
  DecodeShape shape;
  std::vector<std::vector<SegmentSpec>> sequences;
  std::vector<codec::WidthMap> maps;  ///< one a KV head (repeated when there are fewer); pair segments
  uint32_t value_bits = 2;
  uint32_t value_groups = 1;
  bool equalized = false;  ///< token tiers beyond fp16
  bool rotated = false;    ///< pair values are stored Hadamard-rotated
  float soft_cap = 0.0F;
  float key_spread = 1.0F;  ///< larger: sharper softmax
  codec::PairRule rule = codec::PairRule::kMidRise;
  uint32_t seed = 1;
};

/// Pages of one format as they lie on the GPU.
struct HostPool {
  uint32_t page_tokens = 0;
  size_t record_bytes = 0;
  size_t page_bytes = 0;
  uint32_t num_pages = 0;
  std::vector<std::byte> bytes;
};

struct AttentionCase {
  CaseSpec spec;
  std::vector<DecodeSegment> segments;
  std::vector<uint32_t> sequence_segments;
  std::vector<uint32_t> page_table;
  std::array<HostPool, kernels::cuda::kNumDecodeFormats> pools;
  std::vector<kernels::cuda::PairDeviceMap> maps;
  std::vector<Half> equalization;
  std::vector<float> q;         ///< [sequence][q head][head_dim]
  std::vector<float> expected;  ///< the same shape, computed in double from the dequantized cache
  float softmax_scale = 0.0F;
  uint32_t max_key_columns = 0;
  bool half_three_one = true;  ///< all maps are
};

AttentionCase MakeCase(const CaseSpec& spec);

/// Three bits for every other pair, one for the rest: PN-Mix 3/1 at 50 %.
codec::WidthMap HalfThreeOne(uint32_t head_dim, uint32_t seed);
codec::WidthMap UniformMap(uint32_t head_dim, uint32_t width);
/// Widths 1…4 with `mean` bits on average, as `pairs:B` gives them out.
codec::WidthMap MixedMap(uint32_t head_dim, double mean, uint32_t seed);

}  // namespace kvant::cuda_test
