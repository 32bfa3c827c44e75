#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pair_page_task.h"
#include "kvant/codec/token_codec.h"
#include "kvant/kernels/cpu.h"

// What the attention driver (attend.cc) and the kernels of one instruction set share. Plain data only: this header is
// compiled with each set's flags.
namespace kvant::kernels {

inline constexpr uint32_t kRowBlock = 8;         ///< query rows that go through the cache together
inline constexpr uint32_t kStretchTokens = 128;  ///< tokens between two updates of the running softmax
inline constexpr uint32_t kMaxLanes = 16;        ///< fp32 lanes of the widest registers

/// At most kStretchTokens tokens of one KV head's record, from a tile's first token on.
struct Stretch {
  uint32_t head_dim;
  uint32_t value_channels;
  size_t key_tile_bytes;
  const std::byte* keys;
  const std::byte* values;
  const Half* key_scales;  ///< these four belong to the first token onward; unused where the codec has none
  const Half* key_zeros;
  const Half* value_scales;
  const Half* value_zeros;
};

/// Into the second-level cache: the first is too small for a page more than is at hand. GCC takes a function that only
/// prefetches for one without effect and drops the calls of it; the empty statement keeps them.
[[gnu::always_inline]] inline void Prefetch(const void* address) {
  __builtin_prefetch(address, 0, 2);
  asm volatile("");
}

/// Memory that the coming stretch lies in, not yet asked for: one range, then another.
struct Fetch {
  const std::byte* at = nullptr;
  const std::byte* end = nullptr;
  const std::byte* then = nullptr;
  const std::byte* then_end = nullptr;
};

/// What a block of rows needs for pair pages (attend_pair.h). A value's place: byte i of block b of a token's row,
/// field f of it, is place (b · fields + f) · 16 + i.
///
/// Shapes  q    [kRowBlock][head_dim] fp32 in the order of places, times the logit scale
///         x    the same, times the page's key scales and cut to integers
///         out  [kRowBlock][value_places] fp32
///         zero [kRowBlock][value_groups][kMaxLanes]: Σ weight · value zero
struct PairRows {
  bool active;            ///< out and zero hold sums of this chunk
  uint32_t value_places;  ///< of `out`
  uint32_t value_groups;
  float* q;
  int32_t* x;
  float* out;
  float* zero;
  float x_scale[kRowBlock];  ///< q · scale ≈ x_scale · x
  float x_zero[kRowBlock];   ///< q · key zeros
};

/// Up to kRowBlock query rows, in both forms in which they meet keys, with their running softmax.
///
/// Shapes  q  [head_dim][kRowBlock] fp32, times the logit scale: meets kFp16 keys
///         x  [head_dim rounded up to 8, divided by 2][kRowBlock] pairs of int16: q cut to 16 bits, two a channel
///            group of 4: channels (0, 2), then (1, 3); meets the keys of other codecs
///         out [num_rows][value_channels] fp32
struct RowBlock {
  uint32_t num_rows;
  float cap_bits;               ///< the cap of the logits, in bits as they are; 0: none
  uint32_t hidden[kRowBlock];   ///< tokens of the stretch that have left the row's window: a prefix
  uint32_t visible[kRowBlock];  ///< end of the tokens each row may see
  float max[kRowBlock];  ///< what the sums are relative to, in bits (times log2 e): at most kHeadroomBits below the
                         ///< largest logit so far
  alignas(64) float sum[kRowBlock][kMaxLanes];   ///< Σ 2^(logit - max), lane by lane
  alignas(64) float zero[kRowBlock][kMaxLanes];  ///< Σ 2^(logit - max) · value zero, which all channels share
  float log_sum[kRowBlock];                      ///< log2 Σ 2^logit over all tokens; for add_mass alone
  float q_mean[kRowBlock];                       ///< q·mean of the equalized keys that q meets, or 0
  float x_mean[kRowBlock];                       ///< the same of those that x meets
  float x_scale[kRowBlock];                      ///< q ≈ x_scale · x
  int32_t x_sum[kRowBlock];                      ///< Σ x
  float* q;
  int32_t* x;
  float* out;
  uint32_t out_channels;  ///< of `out`
  PairRows pair;
};

/// Query rows as the caller has them.
struct RowSource {
  const float* rows[kRowBlock];  ///< [head_dim] each
  uint32_t num_rows;
  uint32_t head_dim;
  float scale;           ///< of the logits, log2 e included
  const Half* key_mean;  ///< null: keys are not equalized
  const Half* key_scale;
};

/// Memory of one thread's kernels between two steps of a stretch.
struct StretchMemory {
  alignas(64) float p[kRowBlock][kStretchTokens];         ///< logits, then probabilities
  alignas(64) int32_t px[kRowBlock][kStretchTokens / 2];  ///< p · value scale, cut to 16 bits, paired like RowBlock::x
  alignas(64) float value_scale[kStretchTokens];          ///< times what makes their largest kLargestX
  alignas(64) float value_zero[kStretchTokens];
  float p_scale[kRowBlock];   ///< p · value scale ≈ p_scale · px
  int32_t px_sum[kRowBlock];  ///< Σ px where the codes have a bias, else 0
  Fetch fetch;                ///< every step of the kernels asks for a few lines, so that memory is never idle
};

/// One page of pair-mixed codes.
struct PairTask : PairPageTask {
  const std::byte* page;
  uint32_t value_groups;
  const float* units;     ///< by place, of codes with their highest bit at bit 3: 2^(width - 4)
  const float* middles;   ///< half of the largest of those codes
  const uint16_t* sixes;  ///< PairPlan::sixes, with its kNoPlane
  static constexpr uint16_t kNoPlane = 0xFFFF;
};

inline constexpr uint32_t kMaxKeyBits = 4;
inline constexpr uint32_t kMaxKeyBlocks = kMaxKeyBits * kStretchTokens / 64;
inline constexpr size_t kPairXWords = codec::kMaxHeadDim / 2 + 16;  ///< of one row: numbers of 16 bits, some beyond
inline constexpr size_t kPxWords = kStretchTokens / 2 + 16;
inline constexpr uint32_t kMaxValueGroups = codec::kMaxHeadDim / 16;
inline constexpr uint32_t kMaxValueBlocks = codec::kMaxHeadDim / 16;  ///< of 16 bytes in a token's row
inline constexpr uint32_t kMaxSixes = (codec::kMaxHeadDim + 5) / 6;
inline constexpr uint32_t kTableRows = 4;  ///< rows that are looked up in one go
inline constexpr uint32_t kMaxTokenSixes = (kStretchTokens + 5) / 6;

/// One page on its way to all rows.
///
/// Shapes  units.keys      [head_dim / 4][page tokens] units of four places' codes, a byte each, with their highest bit
///                         at bit 3 whatever their width: scales then differ as ranges do, and one unit serves all of
///                         q · scale. Tokens stand in the kernels' order (pair_lanes_*.h)
///         units.values    [page_tokens / 4][blocks] of 16 units: unit i is byte i of the block of four tokens
///         indexes.keys    [sixes of places][planes][tokens rounded up to 64] (pair_look_up_avx512.h)
///         indexes.values  [sixes of tokens][bits of a row rounded up to 128]
///         px              [rows][value groups][kPxWords]: weights times value scales, cut to integers
///         tables          [rows][sixes] sums of five numbers: of keys, then of values
///         sums            [rows][planes, the highest first][64 tokens]: even ones, then odd ones
///         Rows are as long as the page needs, not as long as they may be: the nearest cache has 8 lines for addresses
///         4096 bytes apart.
struct PairMemory {
  struct Units {
    alignas(64) uint8_t keys[codec::kMaxHeadDim / 4][kStretchTokens][4];
    alignas(64) uint8_t values[kStretchTokens / 4 * kMaxValueBlocks][64];
  };
  struct Indexes {
    alignas(64) uint8_t keys[kMaxSixes * kMaxKeyBits * kStretchTokens + 64];
    alignas(64) uint8_t values[kMaxTokenSixes * codec::kMaxHeadDim * 8 + 64];
  };
  union {
    Units units;
    Indexes indexes;
  };
  alignas(64) float key_scale[codec::kMaxHeadDim];  ///< by place, of codes with their highest bit at bit 3
  alignas(64) float key_zero[codec::kMaxHeadDim];
  alignas(64) int16_t key_middle[codec::kMaxHeadDim];  ///< twice the codes' middles, where key_zero is at them
  alignas(64) float value_scale[kMaxValueGroups][kStretchTokens];
  alignas(64) float value_zero[kMaxValueGroups][kStretchTokens];
  float value_unit[kMaxValueGroups];  ///< weight · value scale ≈ value_unit · px, where it is the same for all rows
  alignas(64) int32_t px[kRowBlock * kMaxValueGroups][kPxWords];
  float p_scale[kRowBlock][kMaxValueGroups];
  alignas(64) int16_t tables[kTableRows][kMaxSixes][32];
  alignas(64) int16_t sums[kRowBlock][kMaxKeyBlocks][2][32];
  alignas(64) float logit[kRowBlock][kStretchTokens + kMaxLanes];   ///< not 4096 bytes for eight rows
  alignas(64) float scaled[kRowBlock][kStretchTokens + kMaxLanes];  ///< weights times value scales
  alignas(64) float weight[kStretchTokens];                         ///< of one row
};

struct PairKernels {
  /// Sums over values that a row has, at most three times the channels, rounded up to 64.
  uint32_t (*value_places)(const PairTask& task);
  /// Rows in the order of places, once for all pages of a plan: PairRows::q.
  void (*prepare_rows)(const RowSource& source, const PairTask& task, RowBlock& rows);
  /// A page into `pairs`, once for all rows.
  void (*load)(const PairTask& task, PairMemory& pairs, StretchMemory& memory);
  /// The page that `pairs` holds, for one block of rows.
  void (*attend)(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory);
  /// Adds the rows' sums over values to RowBlock::out, turned back if `rotated`.
  void (*finish)(const PairTask& task, bool rotated, RowBlock& rows);
};

struct AttendKernels {
  /// Fill q and q_mean (kFp16), or x, x_mean, x_scale and x_sum.
  void (*prepare_rows)(codec::TokenCodec codec, const RowSource& source, RowBlock& rows);
  /// One stretch for one block of rows; `reach` is the largest of rows.visible, at least 1.
  void (*attend[codec::kNumTokenCodecs])(const Stretch& stretch, uint32_t reach, RowBlock& rows, StretchMemory& memory);
  /// mass[t] += Σ over rows of the attention that they pay token t of the stretch.
  void (*add_mass[codec::kNumTokenCodecs])(const Stretch& stretch, uint32_t reach, RowBlock& rows,
                                           StretchMemory& memory, float* mass);
  /// Rows of out [num_rows][head_dim], and max and sum: AttendPartial.
  void (*export_rows)(const RowBlock& rows, uint32_t head_dim, float* out, float* max, float* sum);
};

extern const AttendKernels kAttendScalar;
extern const AttendKernels kAttendAvx2;
extern const AttendKernels kAttendAvx512Vnni;
extern const PairKernels kPairScalar;
extern const PairKernels kPairAvx2;
extern const PairKernels kPairAvx512;  ///< needs HasLookUps()

}  // namespace kvant::kernels
