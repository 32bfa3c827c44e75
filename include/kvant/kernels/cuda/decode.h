#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvant/base/status.h"
#include "kvant/kernels/cuda/decode_plan.h"
#include "kvant/kernels/cuda/device_layout.h"
#include "kvant/kernels/cuda/stream.h"

/// Decode attention over compressed pages: one query token a sequence, the codes are read where they lie.
/// Why it is built this way: docs/adr/0102-cuda-decode-attention.md
namespace kvant::kernels::cuda {

/// What a step needs of its kernel.
struct DecodeRequest {
  DecodeShape shape;
  bool pair_pages = false;       ///< fp16 and pair segments; otherwise the token tiers
  bool bf16_pages = false;       ///< bf16 segments and no others
  uint32_t value_bits = 2;       ///< of the pair pages: 2, 3 or 4
  uint32_t value_groups = 1;     ///< of the pair pages: PairFormat::ValueGroups
  uint32_t max_key_columns = 0;  ///< largest PairDeviceLayout::key_columns of all layers and heads
  bool half_three_one = false;   ///< every map is PairDeviceLayout::IsHalfThreeOne: there is a faster kernel
  bool soft_cap = false;
};

/// A kernel, how its grid looks on this device, and what the planner must know.
struct DecodeKernel {
  int id = -1;
  DecodeGrid grid;
  DecodeCosts costs;
  uint32_t stage_bytes = 0;
  uint32_t shared_bytes = 0;
};

/// Errors  kModelUnsupported names the shape or format that no kernel has; kNotFound: no usable GPU
Result<DecodeKernel> SelectDecode(const DecodeRequest& request);

/// Scratch memory of a launch: zeroed once before its first use (ClearWorkspace), then left clean by every launch.
struct DecodeWorkspace {
  size_t counter_bytes = 0;
  size_t partial_bytes = 0;
  size_t total_bytes() const { return counter_bytes + partial_bytes; }
};
DecodeWorkspace WorkspaceOf(const DecodePlan& plan);

/// Pages of one format in GPU memory: page p of KV head h begins at base + p · page_bytes + h · record_bytes.
struct PagePool {
  const void* base = nullptr;
  size_t page_bytes = 0;
  size_t record_bytes = 0;
  uint32_t page_tokens = 0;  ///< 16 times a power of two; kPairPageTokens for pair pages
};

/// One layer's launch. All pointers are device pointers, 16-byte aligned.
///
/// Requires what is stored in slots beyond a segment's tokens is finite (pools are zeroed when allocated)
struct DecodeLaunch {
  const void* plan = nullptr;  ///< DecodePlan::CopyTo's bytes
  void* workspace = nullptr;   ///< WorkspaceOf(plan).total_bytes()
  const float* q = nullptr;    ///< [sequence][q head][head_dim]
  float* out = nullptr;        ///< the same shape
  const uint32_t* page_table = nullptr;
  std::array<PagePool, kNumDecodeFormats> pools;
  const PairDeviceMap* maps = nullptr;  ///< kPair: [map][kv_head]
  const void* equalization = nullptr;   ///< token tiers: [map][kv_head][mean, scale][head_dim] fp16, or null
  std::array<bool, kNumDecodeFormats> rotated_values{};  ///< values stored Hadamard-rotated; the output is turned back
  float softmax_scale = 1.0F;
  float soft_cap = 0.0F;  ///< 0: none; otherwise the request must have said so
};

/// Enqueue decode attention.
///
/// Numerics fp16 operands, fp32 sums; against the dequantized reference: max error <= 3e-3 of the largest output
///          bf16 pages are turned into fp16 on the way: exact between 2^-17 and 65504, beyond which nothing may lie
/// Requires |q·scale| of a pair page below 2000 after the softmax scale, value scales below 255 (32 at three bits)
/// Errors   kInvalidArgument: a plan or pool that does not fit the kernel; kInternal: the driver's message
Status DecodeAttention(const DecodeKernel& kernel, const DecodePlan& plan, const DecodeLaunch& launch, Stream stream);

/// Zero a workspace's counters.
Status ClearWorkspace(const DecodePlan& plan, void* workspace, Stream stream);

}  // namespace kvant::kernels::cuda
