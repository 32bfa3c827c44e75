#pragma once

#include "kernels/cpu/attend_codes.h"
#include "kernels/cpu/attend_queries.h"
#include "kernels/cpu/attend_softmax.h"
#include "kernels/cpu/pair_parts.h"

// Attention to one page of pair-mixed codes (docs/format/pair-pages.md) by products, for instruction sets without
// look-ups. P is one of the PairLanes structs. A page is turned into units of four bytes once, in the nearest cache,
// and met by all rows: q times the key scales, cut to integers, meets codes; zeros are a dot product a row; weights
// times the value scales, cut to integers, meet codes again.
namespace kvant::kernels {
namespace {

/// Fields of a byte of values. Three bits are spread to four when a page is loaded.
constexpr uint32_t ValueFields(uint32_t bits) { return bits == 3 ? 2 : 8 / bits; }
inline size_t ValueRowBytes(const PairTask& task) { return size_t{task.head_dim} / ValueFields(task.value_bits); }
inline uint32_t ValueBlocks(const PairTask& task) { return static_cast<uint32_t>((ValueRowBytes(task) + 15) / 16); }
inline uint32_t ValuePlaces(const PairTask& task) { return ValueBlocks(task) * 16 * ValueFields(task.value_bits); }

template <class V>
constexpr uint32_t kPairSpan = 4 * V::kLanes;  ///< tokens whose order four vectors share
template <class V>
uint32_t PairPositions(const PairTask& task) {
  return RoundUpTo(task.page_tokens, kPairSpan<V>);
}

/// The token at a position of the kernels' order (pair_lanes_portable.h).
template <class V>
constexpr uint32_t TokenAt(uint32_t position) {
  constexpr uint32_t kRuns = V::kLanes / 4;
  const uint32_t run = position % kPairSpan<V> / 4;
  return position / kPairSpan<V> * kPairSpan<V> + (run % kRuns * 4 + run / kRuns) * 4 + position % 4;
}
/// Where in the order the four tokens from 4 · four on begin, divided by four: the inverse.
template <class V>
struct FourPositions {
  uint8_t of[kStretchTokens / 4];

  constexpr FourPositions() : of{} {
    for (uint32_t position = 0; position < kStretchTokens; position += 4) {
      of[TokenAt<V>(position) / 4] = static_cast<uint8_t>(position / 4);
    }
  }
};
template <class V>
constexpr FourPositions<V> kFourPositions{};

/// A group's parameters in the kernels' order, times `factor`.
template <class P>
void StoreTokenParams(const PairTask& task, const Half* params, float factor, float* dst) {
  using V = typename P::V;
  const auto times = V::Set(factor);
  for (uint32_t t = 0; t < PairPositions<V>(task); t += kPairSpan<V>) {
    typename V::F numbers[4];
    KVANT_UNROLL
    for (uint32_t k = 0; k < 4; ++k) {
      numbers[k] = V::Mul(V::LoadHalf(params + t + k * V::kLanes), times);
    }
    P::StoreOrdered(numbers, dst + t);
  }
}

template <class P>
void LoadValueParams(const PairTask& task, PairMemory& pairs) {
  using V = typename P::V;
  constexpr float kSmallestScale = 0x1p-24F;  // of fp16; where all are 0 the values are, too
  alignas(64) Half copy[kStretchTokens];
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    StoreTokenParams<P>(task, TokenParams(task, task.value_zeros, g, copy), 1.0F, pairs.value_zero[g]);
    const Half* scales = TokenParams(task, task.value_scales, g, copy);
    auto largest = V::Set(kSmallestScale);
    for (uint32_t t = 0; t < PairPositions<V>(task); t += V::kLanes) {
      largest = V::Max(largest, V::LoadHalf(scales + t));
    }
    const float max = V::Largest(largest);
    StoreTokenParams<P>(task, scales, kLargestX / max, pairs.value_scale[g]);
    pairs.value_unit[g] = max / kLargestX;
  }
}

/// 16 codes of three bits, lowest first, become 16 of four.
inline uint64_t SpreadThreeBits(uint64_t x) {
  x = (x & 0xFFFFFF) | (x & 0xFFFFFF000000) << 8;
  x = (x & 0x00000FFF00000FFF) | (x & 0x00FFF00000FFF000) << 4;
  x = (x & 0x003F003F003F003F) | (x & 0x0FC00FC00FC00FC0) << 2;
  return (x & 0x0707070707070707) | (x & 0x3838383838383838) << 1;
}

/// A row of values of three bits, to four. Reads two bytes more than the row has: at the end, of the scales.
inline void SpreadRow(uint32_t head_dim, const std::byte* codes, std::byte* spread) {
  for (size_t i = 0; i < size_t{head_dim} / 16; ++i) {
    uint64_t packed;
    __builtin_memcpy(&packed, codes + i * 6, sizeof packed);
    const uint64_t four_bits = SpreadThreeBits(packed & 0xFFFFFFFFFFFF);
    __builtin_memcpy(spread + i * 8, &four_bits, sizeof four_bits);
  }
}

template <class P>
void LoadThreeBitValues(const PairTask& task, PairMemory& pairs) {
  const std::byte* codes = task.page + task.value_codes;
  const size_t row_bytes = ValueRowBytes(task);
  alignas(64) std::byte rows[4 * codec::kMaxHeadDim / 2 + 16];
  for (uint32_t four = 0; four < task.page_tokens / 4; ++four) {
    SpreadRow(4 * task.head_dim, codes, rows);
    P::JoinRows(rows, row_bytes, ValueBlocks(task), pairs.units.values + four * ValueBlocks(task));
    codes += size_t{task.head_dim} * 3 / 2;
  }
}

template <class P>
void LoadPairPage(const PairTask& task, PairMemory& pairs, StretchMemory& /*memory*/) {
  P::ExpandKeys(task, pairs);
  LoadKeyParams<typename P::V>(task, P::PlaceHalves, pairs);
  LoadValueParams<P>(task, pairs);
  if (task.value_bits == 3) {
    return LoadThreeBitValues<P>(task, pairs);
  }
  const size_t row_bytes = ValueRowBytes(task);
  const uint32_t blocks = ValueBlocks(task);
  for (uint32_t four = 0; four < task.page_tokens / 4; ++four) {
    P::JoinRows(task.page + task.value_codes + four * 4 * row_bytes, row_bytes, blocks,
                pairs.units.values + four * blocks);
  }
}

/// q times the page's scales, and q·zeros lane by lane.
template <class V>
struct ScaledRow {
  alignas(64) float q[codec::kMaxHeadDim];
  typename V::F zero;
  float largest;
};

template <class V>
void ScalePairRow(const PairTask& task, const PairMemory& pairs, const float* q, ScaledRow<V>& row) {
  auto zero = V::Set(0.0F);
  auto largest = V::Set(1e-30F);
  for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
    const auto value = V::Load(q + c);
    const auto scaled = V::Mul(value, V::Load(pairs.key_scale + c));
    zero = V::Fma(value, V::Load(pairs.key_zero + c), zero);
    largest = V::Max(largest, V::Abs(scaled));
    V::Store(row.q + c, scaled);
  }
  row.zero = zero;
  row.largest = V::Largest(largest);
}

/// q times the page's scales and zeros. First all rows are scaled, then all are cut: the largest of one is known only
/// some time after its last.
template <class P>
void FoldKeyParams(const PairTask& task, const PairMemory& pairs, RowBlock& rows) {
  using V = typename P::V;
  ScaledRow<V> scaled[kRowBlock];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    ScalePairRow<V>(task, pairs, rows.pair.q + size_t{row} * task.head_dim, scaled[row]);
  }
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    rows.pair.x_scale[row] = CutRow<V>(scaled[row].q, task.head_dim, row, rows.pair.x).scale;
    rows.pair.x_zero[row] = V::Sum(scaled[row].zero);
  }
}

template <class P, int kRows, uint32_t kVectors>
void PairLogits(const PairTask& task, PairMemory& pairs, const RowBlock& rows, uint32_t first_row, uint32_t vector,
                StretchMemory& memory) {
  using V = typename P::V;
  const uint32_t position = vector * V::kLanes;
  typename V::I acc[kRows][kVectors];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = V::SetInt(0);
    }
  }
  Fetch fetch = memory.fetch;
  const int32_t* x = rows.pair.x + first_row;
  for (uint32_t unit = 0; unit < task.head_dim / 4; ++unit, x += 2 * kRowBlock) {
    typename V::I units[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      units[b] = V::LoadInt(pairs.units.keys[unit][position + b * V::kLanes]);
    }
    FetchAhead<1>(fetch);
    DotUnits<V, 8, 0, kRows, kVectors>(units, x, 1, kRowBlock, acc);
  }
  memory.fetch = fetch;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto scale = V::Set(rows.pair.x_scale[first_row + r]);
    const auto zero = V::Set(rows.pair.x_zero[first_row + r]);
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      V::Store(&pairs.logit[first_row + r][position + b * V::kLanes], V::Fma(V::ToFloats(acc[r][b]), scale, zero));
    }
  }
}

inline int32_t* PxOf(const PairTask& task, PairMemory& pairs, uint32_t row, uint32_t group) {
  return pairs.px[row * task.value_groups + group];
}

/// Weights of one row relative to its largest logit in the page, times value scales and cut: px of every group. Adds
/// the weights' sum, times `factor`, to the row's, and so for value zeros.
template <class P>
void WeighPairRow(const PairTask& task, float reference, float factor, uint32_t row, RowBlock& rows, PairMemory& pairs,
                  Fetch& fetch) {
  using V = typename P::V;
  const uint32_t positions = PairPositions<V>(task);
  const auto minus_reference = V::Set(-reference);
  const auto to_running = V::Set(factor);
  float* p = pairs.weight;
  auto sum = V::Set(0.0F);
  for (uint32_t i = 0; i < positions; i += V::kLanes) {
    const auto weight = Exp2<V>(V::Add(V::Load(pairs.logit[row] + i), minus_reference));
    sum = V::Add(sum, weight);
    V::Store(p + i, weight);
  }
  V::Store(rows.sum[row], V::Fma(sum, to_running, V::Load(rows.sum[row])));
  FetchAhead<4>(fetch);
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    int32_t* px = PxOf(task, pairs, row, g);
    auto zero = V::Set(0.0F);
    for (uint32_t at = 0; at < positions; at += V::kLanes) {
      const auto weight = V::Load(p + at);
      zero = V::Fma(weight, V::Load(pairs.value_zero[g] + at), zero);
      const auto x = V::Round(V::Mul(weight, V::Load(pairs.value_scale[g] + at)));
      V::StorePaired(reinterpret_cast<std::byte*>(px) + at * sizeof(int16_t), x);
    }
    float* zeros = rows.pair.zero + (size_t{row} * task.value_groups + g) * kMaxLanes;
    V::Store(zeros, V::Fma(zero, to_running, V::Load(zeros)));
  }
}

template <class P>
void WeighPairRows(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  using V = typename P::V;
  const uint32_t positions = PairPositions<V>(task);
  alignas(64) float max[kMaxLanes] = {};
  alignas(64) float factor[kMaxLanes];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    max[row] = MaskPairRow<V>(rows.hidden[row], rows.visible[row], positions, TokenAt<V>, pairs.logit[row]);
  }
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    RaiseMax<V>(max[row], rows.out_channels, rows, row);
    const bool sees = rows.visible[row] > rows.hidden[row];
    factor[row] = sees ? max[row] - rows.max[row] : -1000.0F;  // 0 as a power of two
  }
  for (uint32_t row = 0; row < rows.num_rows; row += V::kLanes) {
    V::Store(factor + row, Exp2<V>(V::Load(factor + row)));
  }
  Fetch fetch = memory.fetch;
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (factor[row] > 0.0F) {
      WeighPairRow<P>(task, max[row], factor[row], row, rows, pairs, fetch);
    } else {
      __builtin_memset(PxOf(task, pairs, row, 0), 0, task.value_groups * sizeof pairs.px[0]);
    }
    for (uint32_t g = 0; g < task.value_groups; ++g) {
      pairs.p_scale[row][g] = factor[row] * pairs.value_unit[g];
    }
  }
  memory.fetch = fetch;
}

/// Field `kField` of bytes that hold fields of kBits.
template <class V, int kBits, int kField>
[[gnu::always_inline]] inline CodePairs<V> UnpackField(typename V::I bytes) {
  constexpr int32_t kByteMask = (1 << kBits) - 1;
  const auto mask = V::SetInt(kByteMask | kByteMask << 16);
  constexpr int kShift = kBits * kField;
  if constexpr (kShift == 0) {
    return {V::And(bytes, mask), V::And(V::template ShiftRight16<8>(bytes), mask)};
  } else {
    return {V::And(V::template ShiftRight16<kShift>(bytes), mask),
            V::And(V::template ShiftRight16<8 + kShift>(bytes), mask)};
  }
}

/// One run of lanes of a block of units: which of its values a group has.
struct ValuePart {
  uint32_t block;
  uint32_t lane;  ///< first of the run's, of the block's 16
  uint32_t group;
  uint32_t places;  ///< first place of field 0
};

/// acc[r][f] of fields kFirst + f: units times weights cut to 16 bits.
template <class P, int kBits, int kFirst, int kRows, uint32_t kFields>
[[gnu::always_inline]] inline void DotPairedValues(const PairTask& task, const uint8_t* values, const int32_t* px,
                                                   typename P::V::I (*acc)[kFields], Fetch& fetch) {
  using V = typename P::V;
  const size_t step = size_t{ValueBlocks(task)} * 64;
  const size_t px_row = task.value_groups * kPxWords;
  const uint32_t steps = task.page_tokens / 4;
  uint32_t four = 0;
  do {
    const auto bytes = V::LoadInt(values);
    FetchAhead<1>(fetch);
    CodePairs<V> codes[kFields];
    codes[0] = UnpackField<V, kBits, kFirst>(bytes);
    if constexpr (kFields > 1) {
      codes[1] = UnpackField<V, kBits, kFirst + 1>(bytes);
    }
    const int32_t* x = px + 2 * kFourPositions<V>.of[four];
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto even = V::SetInt(x[r * px_row]);
      const auto odd = V::SetInt(x[r * px_row + 1]);
      KVANT_UNROLL
      for (uint32_t f = 0; f < kFields; ++f) {
        acc[r][f] = V::DotPairs(V::DotPairs(acc[r][f], codes[f].even, even), codes[f].odd, odd);
      }
    }
    values += step;
  } while (++four < steps);
}

template <class P, int kBits, int kFirst, int kRows, uint32_t kFields>
void AddPairValues(const PairTask& task, PairMemory& pairs, RowBlock& rows, uint32_t first_row, const ValuePart& part,
                   const float* lanes, StretchMemory& memory) {
  using V = typename P::V;
  typename V::I acc[kRows][kFields];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t f = 0; f < kFields; ++f) {
      acc[r][f] = V::SetInt(0);
    }
  }
  const uint8_t* values = pairs.units.values[part.block] + part.lane * 4;
  const int32_t* px = PxOf(task, pairs, first_row, part.group);
  Fetch fetch = memory.fetch;
  DotPairedValues<P, kBits, kFirst, kRows, kFields>(task, values, px, acc, fetch);
  memory.fetch = fetch;
  const auto in_group = V::Load(lanes);
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto scale = V::Mul(V::Set(pairs.p_scale[first_row + r][part.group]), in_group);
    float* out = rows.pair.out + size_t{first_row + r} * rows.pair.value_places + part.places;
    KVANT_UNROLL
    for (uint32_t f = 0; f < kFields; ++f) {
      float* at = out + (kFirst + f) * 16;
      V::Store(at, V::Fma(V::ToFloats(acc[r][f]), scale, V::Load(at)));
    }
  }
}

/// Calls body(part, mask of its lanes) for every run of lanes and every group that has values in it.
template <class V, class Body>
void ForEachValuePart(const PairTask& task, const Body& body) {
  const uint32_t fields = ValueFields(task.value_bits);
  for (uint32_t block = 0; block < ValueBlocks(task); ++block) {
    for (uint32_t lane = 0; lane < 16; lane += V::kLanes) {
      const uint32_t first = (block * 16 + lane) * fields / task.value_group;
      for (uint32_t group = first; group < task.value_groups; ++group) {
        alignas(64) float lanes[V::kLanes];
        bool any = false;
        for (uint32_t i = 0; i < V::kLanes; ++i) {
          const bool in_group = (block * 16 + lane + i) * fields / task.value_group == group;
          lanes[i] = in_group ? 1.0F : 0.0F;
          any = any || in_group;
        }
        if (!any) {
          break;
        }
        body(ValuePart{block, lane, group, block * fields * 16 + lane}, lanes);
      }
    }
  }
}

template <class P, int kBits>
void AddAllPairValues(const PairTask& task, PairMemory& pairs, RowBlock& rows, StretchMemory& memory) {
  using V = typename P::V;
  constexpr uint32_t kFields = kBits == 8 ? 1 : 2;
  ForEachValuePart<V>(task, [&](const ValuePart& part, const float* lanes) {
    for (uint32_t row = 0; row < rows.num_rows; row += V::kMaxRows) {
      const uint32_t left = rows.num_rows - row;
      WithCount<V::kMaxRows>(left < V::kMaxRows ? left : V::kMaxRows, [&](auto num_rows) {
        constexpr int kRows = decltype(num_rows)::value;
        AddPairValues<P, kBits, 0, kRows, kFields>(task, pairs, rows, row, part, lanes, memory);
        if constexpr (kBits == 2) {
          AddPairValues<P, kBits, 2, kRows, kFields>(task, pairs, rows, row, part, lanes, memory);
        }
      });
    }
  });
}

template <class P>
void AttendPairPage(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  using V = typename P::V;
  FoldKeyParams<P>(task, pairs, rows);
  const uint32_t positions = PairPositions<V>(task);
  Tiled<V>(rows.num_rows, positions / V::kLanes, [&](auto num_rows, auto vectors, uint32_t row, uint32_t vector) {
    PairLogits<P, decltype(num_rows)::value, decltype(vectors)::value>(task, pairs, rows, row, vector, memory);
  });
  if (rows.cap_bits > 0.0F) {
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      CapRow<V>(rows.cap_bits, positions, pairs.logit[row]);
    }
  }
  WeighPairRows<P>(task, rows, pairs, memory);
  switch (task.value_bits) {
    case 2: return AddAllPairValues<P, 2>(task, pairs, rows, memory);
    case 8: return AddAllPairValues<P, 8>(task, pairs, rows, memory);
    default: return AddAllPairValues<P, 4>(task, pairs, rows, memory);
  }
}

/// Sums by place to sums by channel.
template <uint32_t kFields>
void OrderValues(const float* places, uint32_t blocks, float* channels) {
  for (uint32_t block = 0; block < blocks; ++block, places += 16 * kFields, channels += 16 * kFields) {
    for (uint32_t i = 0; i < 16; ++i) {
      for (uint32_t f = 0; f < kFields; ++f) {
        channels[i * kFields + f] = places[f * 16 + i];
      }
    }
  }
}

template <class P>
void FinishPairRows(const PairTask& task, bool rotated, RowBlock& rows) {
  const uint32_t fields = ValueFields(task.value_bits);
  const auto order = fields == 4 ? OrderValues<4> : fields == 2 ? OrderValues<2> : OrderValues<1>;
  alignas(64) float channels[codec::kMaxHeadDim];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    order(rows.pair.out + size_t{row} * rows.pair.value_places, ValueBlocks(task), channels);
    FinishPairRow<typename P::V>(task, rotated, row, channels, rows);
  }
}

template <class P>
constexpr PairKernels MakePairKernels() {
  return {ValuePlaces, PreparePairRows, LoadPairPage<P>, AttendPairPage<P>, FinishPairRows<P>};
}

}  // namespace
}  // namespace kvant::kernels
