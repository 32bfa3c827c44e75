#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/codec/token_page.h"
#include "kvant/kernels/cpu.h"
#include "kvant/kernels/pair_pages.h"

namespace kvant::kernels {

/// Tokens of one sequence, layer and KV head in one format, in order of position, as they lie in memory.
struct AttendSegment {
  const codec::TokenPageLayout* layout = nullptr;
  /// The pages, in order; this KV head's record lies `record_offset` bytes into each. All but the last are full.
  std::span<const std::byte* const> pages;
  size_t record_offset = 0;
  uint32_t num_tokens = 0;
  int32_t first_position = 0;  ///< of the first token; the rest follow one by one, unless `positions` says otherwise
  const int32_t* positions = nullptr;  ///< [num_tokens], rising; null where they are consecutive
  /// Key equalization, head_dim fp16 each; null when the keys are stored as they are.
  const Half* key_mean = nullptr;
  const Half* key_scale = nullptr;
  /// Pages of pair-mixed codes: one KV head's page each, full, any alignment; `layout` is null then, keys are not
  /// equalized, and a slice begins at a page. Their values may be stored turned by codec::RotateRow; the result is
  /// turned back.
  const PairPlan* pair = nullptr;
  bool rotated_values = false;

  uint32_t head_dim() const { return pair != nullptr ? pair->format().head_dim : layout->head_dim; }
};

/// A run of tokens of one segment. A chunk is the unit of work: its slices are attended to in order with one running
/// softmax, and its result does not depend on which other chunks, queries or threads there are.
struct AttendSlice {
  AttendSegment segment;
  uint32_t first_token = 0;  ///< in the segment; a multiple of kTileTokens, of pair pages of a page
  uint32_t num_tokens = 0;
};

/// Query rows that meet one KV head: row = query · q_heads_per_kv_head + head.
struct AttendQueries {
  const float* data = nullptr;  ///< element c of (query i, head h): data[i·query_stride + h·head_stride + c]
  size_t query_stride = 0;      ///< elements
  size_t head_stride = 0;
  uint32_t num_queries = 0;
  uint32_t q_heads_per_kv_head = 0;
  uint32_t head_dim = 0;
  float scale = 1.0F;                  ///< of the logits, before the softmax (1/sqrt(head_dim) as a rule)
  std::span<const int32_t> positions;  ///< [num_queries]; a query sees tokens at positions up to its own
  uint32_t window = 0;                 ///< tokens that a query sees, its own position included; 0: all before it
  float logit_cap = 0.0F;  ///< a logit, with the mean of equalized keys in it, becomes cap · tanh(logit / cap); 0: none

  uint32_t num_rows() const { return num_queries * q_heads_per_kv_head; }
};

/// A partial softmax per row: out = Σ exp(logit - max) · v (not yet divided), max, sum = Σ exp(logit - max).
/// A row that saw no token has max = -infinity, sum = 0, out = 0.
///
/// Shapes  out [num_rows, head_dim] fp32; max, sum [num_rows]
struct AttendPartial {
  float* out = nullptr;
  float* max = nullptr;
  float* sum = nullptr;
};

struct AttendKernels;  // of this layer: what one instruction set offers,
struct RowBlock;       // and a thread's memory
struct StretchMemory;
struct PairKernels;
struct PairMemory;

/// Scratch memory of one thread. Grows to what the largest call needed.
class AttendScratch {
 public:
  /// At least `bytes`, 64-byte aligned, valid until the next call; contents unspecified.
  std::byte* Reserve(size_t bytes);

 private:
  std::vector<std::byte> memory_;
};

/// Query rows on their way over chunks: prepared once for all chunks whose keys they meet in the same form.
///
/// Requires num_queries in 1…512; every segment of queries.head_dim; finite queries
/// Ensures  row results bit-equal for any grouping of the same rows into objects, and of chunks into calls
/// Numerics against the dequantized reference: max error <= 3e-3 of the largest output (integer paths: q and the
///          probabilities are cut to 15 bits, over pair pages of AVX-512 to 11); fp16 segments 1e-5
/// Threads  one; any number of objects, each with its own scratch
class RowAttention {
 public:
  /// What `queries` points to and the scratch must outlive the object; nothing else may use the scratch meanwhile.
  RowAttention(Isa isa, const AttendQueries& queries, AttendScratch& scratch);

  /// Attend to one chunk, in the format it is stored in. `next` is what the next call will begin with, or null: it is
  /// fetched into the cache meanwhile.
  void Attend(std::span<const AttendSlice> chunk, const AttendSlice* next, AttendPartial partial);

  /// mass[t] += Σ over rows of exp(logit - log_sum), the attention that the rows pay the slice's token t (SpectrumKV
  /// section 3, A_j): a second pass, after log_sum = log Σ exp(logit) is known from the merged partials.
  /// Shapes   log_sums [num_rows]; mass [slice.num_tokens rounded up to a tile]
  /// Requires a slice of tokens, not of pair pages
  void AddMass(const AttendSlice& slice, std::span<const float> log_sums, std::span<float> mass);

 private:
  /// The keys that the rows are prepared for, in one of the two forms.
  struct Form {
    bool ready = false;
    const Half* key_mean = nullptr;
  };

  void Prepare(const AttendSegment& segment);
  void Check(const AttendSlice& slice) const;
  void AttendToSlice(const AttendSlice& slice, const AttendSlice* next);
  void AttendToPairSlice(const AttendSlice& slice, const AttendSlice* next);
  void BeginPairs(const AttendSegment& segment);
  void FinishPairs();
  void Export(AttendPartial partial) const;

  const AttendKernels& kernels_;
  const PairKernels& pair_kernels_;
  AttendQueries queries_;
  uint32_t value_channels_;
  std::span<RowBlock> blocks_;  ///< in the scratch, as is what they point to
  StretchMemory* stretch_;
  PairMemory* pair_memory_;
  Form exact_;
  Form coded_;
  const PairPlan* pair_plan_ = nullptr;  ///< that the rows are prepared for
  const PairPlan* pair_sums_ = nullptr;  ///< whose values the rows have sums of, not yet added to the others
  bool pair_rotated_ = false;
  bool fetched_ = false;  ///< where the coming chunk begins
};

/// Merge partials of one row in the given order and divide: the row's attention output. Returns log Σ exp(logit).
///
/// Shapes  outs: num_partials pointers to [head_dim]; maxes, sums [num_partials]; dst [head_dim]
/// Requires at least one partial that saw a token
float MergePartials(std::span<const float* const> outs, std::span<const float> maxes, std::span<const float> sums,
                    std::span<float> dst);

/// Attention of one row in double over dequantized keys and values: the slow reference all ISAs are tested against.
/// Shapes  dst [num_rows, head_dim]
void AttendRef(const AttendQueries& queries, std::span<const AttendSlice> slices, std::span<float> dst);

}  // namespace kvant::kernels
