#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/half.h"
#include "kvant/base/status.h"
#include "kvant/codec/pair_page.h"
#include "kvant/kernels/cuda/stream.h"

/// What an exact prefill says of the keys it has met: how long the pairs of queries and keys are (methods.md 3.13), and
/// how much attention every token gets (methods.md 3.12). Both are added up over the chunks of a prompt.
namespace kvant::kernels::cuda {

// ------------------------------------------------------------------------------------------------ pair norms
/// sums[head, pair] += Σ over rows of ‖x^(pair)‖₂.
///
/// Shapes   rows [num_rows][num_heads][head_dim] fp16, 16-byte aligned; sums [num_heads][head_dim / 2] fp32
/// Numerics fp32; a launch repeats bit for bit; within 1e-5 of the reference
struct PairNorms {
  uint32_t head_dim = 0;
  uint32_t num_heads = 0;
  codec::PairLayout pairs = codec::PairLayout::kHalfSplit;
  const void* rows = nullptr;
  size_t num_rows = 0;
  float* sums = nullptr;
  void* workspace = nullptr;  ///< PairNormsWorkspace bytes, 16-byte aligned; need not be cleared
};
size_t PairNormsWorkspace(uint32_t head_dim, uint32_t num_heads, size_t num_rows);
/// Errors  kModelUnsupported: head_dim not 64, 128 or 256
Status AddPairNorms(const PairNorms& norms, Stream stream);

/// The scalar reference of AddPairNorms.
void AddPairNormsRef(codec::PairLayout pairs, uint32_t head_dim, uint32_t num_heads, std::span<const Half> rows,
                     std::span<double> sums);

/// σ(h, i) = (mean query norm over the query heads of h) · (mean key norm), from the sums of a whole prompt.
/// Shapes  q_sums [num_kv_heads · group][num_pairs], k_sums [num_kv_heads][num_pairs], result as k_sums
/// Requires num_queries, num_keys > 0
std::vector<float> PairSaliency(std::span<const float> q_sums, std::span<const float> k_sums, uint32_t num_pairs,
                                uint64_t num_queries, uint64_t num_keys);

// ------------------------------------------------------------------------------------------------ attention mass
/// mass[kv_head, j] += Σ over the given queries at positions >= j and the query heads of kv_head of softmax(q·k)_j.
///
/// In two passes: the softmax sums of every query, then every key's share of them; nothing of size queries × keys is
/// stored. Queries may be all of a prompt, a chunk of it, or a sample.
/// Shapes   q [num_queries][q heads][head_dim], keys [num_keys][num_kv_heads][head_dim] fp16, 16-byte aligned
/// Requires positions ascending, each below num_keys; |q·k·scale| finite in fp32
/// Numerics fp16 products, fp32 sums; a launch repeats bit for bit; within 1e-3 of the largest mass
struct AttentionMass {
  uint32_t head_dim = 0;
  uint32_t num_kv_heads = 0;
  uint32_t q_heads_per_kv_head = 1;
  const void* q = nullptr;
  const uint32_t* positions = nullptr;  ///< [num_queries]; null: query i is token first_position + i
  uint32_t first_position = 0;
  uint32_t num_queries = 0;
  const void* keys = nullptr;
  uint32_t num_keys = 0;
  float softmax_scale = 1.0F;
  float soft_cap = 0.0F;      ///< 0: none
  uint32_t window = 0;        ///< a query sees its own token and window - 1 before it; 0: all
  float* mass = nullptr;      ///< [num_kv_heads][num_keys]
  void* workspace = nullptr;  ///< AttentionMassWorkspace bytes, 16-byte aligned; need not be cleared
};
size_t AttentionMassWorkspace(const AttentionMass& mass);
/// Errors  kModelUnsupported: head_dim not 64, 128 or 256
Status AddAttentionMass(const AttentionMass& mass, Stream stream);

/// The scalar reference: `mass` holds host pointers; its workspace and mass are not used. Adds to `sums`.
void AddAttentionMassRef(const AttentionMass& mass, std::span<double> sums);

}  // namespace kvant::kernels::cuda
