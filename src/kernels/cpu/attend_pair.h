#pragma once

#include "kernels/cpu/attend_codes.h"
#include "kernels/cpu/attend_queries.h"
#include "kernels/cpu/attend_softmax.h"
#include "kernels/cpu/rotate_values.h"

// Attention to one page of pair-mixed codes (docs/format/pair-pages.md), written once for every instruction set. P is
// one of the PairLanes structs. A page is turned into units of four bytes once, in the nearest cache, and met by all
// rows: q times the key scales, cut to integers, meets codes; zeros are a dot product a row; weights times the value
// scales, cut to integers, meet codes again.
namespace kvant::kernels {
namespace {

/// Fields of a byte of values. Three bits are spread to four when a page is loaded.
constexpr uint32_t ValueFields(uint32_t bits) { return bits == 3 ? 2 : 8 / bits; }
inline size_t ValueRowBytes(const PairTask& task) { return size_t{task.head_dim} / ValueFields(task.value_bits); }
inline uint32_t ValueBlocks(const PairTask& task) { return static_cast<uint32_t>((ValueRowBytes(task) + 15) / 16); }

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
constexpr uint32_t PositionOfFour(uint32_t four) {
  constexpr uint32_t kRuns = V::kLanes / 4;
  const uint32_t in_span = four % V::kLanes;
  return four / V::kLanes * V::kLanes + in_span % 4 * kRuns + in_span / 4;
}

template <class P>
void PreparePairRows(const RowSource& source, const PairTask& task, RowBlock& rows) {
  for (uint32_t row = 0; row < source.num_rows; ++row) {
    float* q = rows.pair.q + size_t{row} * task.head_dim;
    for (uint32_t place = 0; place < task.head_dim; ++place) {
      q[place] = source.rows[row][task.order[place]] * source.scale;
    }
  }
}

template <class P>
void LoadKeyParams(const PairTask& task, PairMemory& pairs) {
  using V = typename P::V;
  P::PlaceHalves(task, task.page + task.key_scales, pairs.key_scale);
  P::PlaceHalves(task, task.page + task.key_zeros, pairs.key_zero);
  for (uint32_t place = 0; place < task.head_dim; place += V::kLanes) {
    float* scale = pairs.key_scale + place;
    V::Store(scale, V::Mul(V::Load(scale), V::Load(task.units + place)));
  }
}

/// A group's parameters, one token after the other; tokens that the page does not have get 0.
inline const Half* TokenParams(const PairTask& task, size_t offset, uint32_t group, Half* copy) {
  const auto* at = reinterpret_cast<const Half*>(task.page + offset) + group;
  if (task.value_groups == 1 && task.page_tokens == kStretchTokens) {
    return at;
  }
  for (uint32_t t = 0; t < kStretchTokens; ++t) {
    copy[t] = t < task.page_tokens ? at[size_t{t} * task.value_groups] : Half{};
  }
  return copy;
}

/// The same in the kernels' order, times `factor`.
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
constexpr float LargestPx() {
  if constexpr (P::kTriples) {
    return 2.0F * P::kLargestTriple;  // weights are cut to numbers from -kLargestTriple on
  } else {
    return kLargestX;
  }
}

template <class P>
void LoadValueParams(const PairTask& task, PairMemory& pairs) {
  using V = typename P::V;
  constexpr float kSmallestScale = 0x1p-24F;  // of fp16; where all are 0 the values are, too
  // Eight-bit codes fill a byte: their weights are cut to 16 bits everywhere.
  const float full = task.value_bits == 8 ? kLargestX : LargestPx<P>();
  alignas(64) Half copy[kStretchTokens];
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    StoreTokenParams<P>(task, TokenParams(task, task.value_zeros, g, copy), 1.0F, pairs.value_zero[g]);
    const Half* scales = TokenParams(task, task.value_scales, g, copy);
    auto largest = V::Set(kSmallestScale);
    for (uint32_t t = 0; t < PairPositions<V>(task); t += V::kLanes) {
      largest = V::Max(largest, V::LoadHalf(scales + t));
    }
    const float max = V::Largest(largest);
    StoreTokenParams<P>(task, scales, full / max, pairs.value_scale[g]);
    pairs.value_unit[g] = max / full;
  }
}

/// 16 codes of three bits, lowest first, become 16 of four.
inline uint64_t SpreadThreeBits(uint64_t x) {
  x = (x & 0xFFFFFF) | (x & 0xFFFFFF000000) << 8;
  x = (x & 0x00000FFF00000FFF) | (x & 0x00FFF00000FFF000) << 4;
  x = (x & 0x003F003F003F003F) | (x & 0x0FC00FC00FC00FC0) << 2;
  return (x & 0x0707070707070707) | (x & 0x3838383838383838) << 1;
}

template <class P>
void LoadThreeBitValues(const PairTask& task, PairMemory& pairs) {
  const std::byte* codes = task.page + task.value_codes;
  const size_t row_bytes = ValueRowBytes(task);
  alignas(64) std::byte rows[4 * codec::kMaxHeadDim / 2 + 16];
  for (uint32_t four = 0; four < task.page_tokens / 4; ++four) {
    for (size_t i = 0; i < size_t{task.head_dim} / 4; ++i) {
      uint64_t packed;  // two bytes more than are needed: at the end, of the scales
      __builtin_memcpy(&packed, codes + i * 6, sizeof packed);
      const uint64_t spread = SpreadThreeBits(packed & 0xFFFFFFFFFFFF);
      __builtin_memcpy(rows + i * 8, &spread, sizeof spread);
    }
    P::JoinRows(rows, row_bytes, ValueBlocks(task), pairs.values + four * ValueBlocks(task));
    codes += size_t{task.head_dim} * 3 / 2;
  }
}

template <class P>
void LoadPairPage(const PairTask& task, PairMemory& pairs, StretchMemory& /*memory*/) {
  P::ExpandKeys(task, pairs);
  LoadKeyParams<P>(task, pairs);
  LoadValueParams<P>(task, pairs);
  if (task.value_bits == 3) {
    return LoadThreeBitValues<P>(task, pairs);
  }
  const size_t row_bytes = ValueRowBytes(task);
  const uint32_t blocks = ValueBlocks(task);
  for (uint32_t four = 0; four < task.page_tokens / 4; ++four) {
    P::JoinRows(task.page + task.value_codes + four * 4 * row_bytes, row_bytes, blocks, pairs.values + four * blocks);
  }
}

/// Words of one row of triples: 32 for every 64 places, room for all.
constexpr size_t kTripleRow = codec::kMaxHeadDim / 2;

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

/// A row as triples, and the sum of what the middle of all codes makes of what is cut off, in units of x. Adding that,
/// what is cut off meets codes around 0 only, half as large.
template <class P>
typename P::V::F CutTriples(const PairTask& task, const ScaledRow<typename P::V>& row, int32_t* x) {
  using V = typename P::V;
  const auto inverse = V::Set(P::kLargestTriple / row.largest);
  auto rest = V::Set(0.0F);
  for (uint32_t c = 0; c < task.head_dim; c += kPairSpan<V>) {
    typename V::I cut[4];
    KVANT_UNROLL
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t at = c + k * V::kLanes;
      cut[k] = V::SetInt(0);
      if (at < task.head_dim) {
        const auto exact = V::Mul(V::Load(row.q + at), inverse);
        cut[k] = V::Round(exact);
        rest = V::Fma(V::Sub(exact, V::ToFloats(cut[k])), V::Load(task.middles + at), rest);
      }
    }
    P::StoreTriples(cut, x + c / 2);
  }
  return rest;
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
    if constexpr (P::kTriples) {
      const float unit = scaled[row].largest / P::kLargestTriple;
      const auto rest = CutTriples<P>(task, scaled[row], rows.pair.x + row * kTripleRow);
      rows.pair.x_scale[row] = unit;
      rows.pair.x_zero[row] = V::Sum(V::Fma(rest, V::Set(unit), scaled[row].zero));
    } else {
      rows.pair.x_scale[row] = CutRow<V>(scaled[row].q, task.head_dim, row, rows.pair.x).scale;
      rows.pair.x_zero[row] = V::Sum(scaled[row].zero);
    }
  }
}

/// acc[r][b] += codes[b] · (α, β, γ) of row r.
template <class P, int kRows, uint32_t kVectors, class Triple>
[[gnu::always_inline]] inline void DotTriple(const Triple (&codes)[kVectors], const int32_t* x, size_t x_row,
                                             typename P::V::I (*acc)[kVectors]) {
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = P::Dot(acc[r][b], codes[b].first, x[r * x_row]);
    }
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = P::Dot(acc[r][b], codes[b].second, x[r * x_row + 2]);
    }
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = P::Dot(acc[r][b], codes[b].both, x[r * x_row + 16]);
    }
  }
}

/// acc[r][b] += codes · x over all places, as StoreTriples has them. Of a last run of places that has no partner, x is
/// 0 and the codes are an earlier page's.
template <class P, int kRows, uint32_t kVectors>
[[gnu::always_inline]] inline void DotTriples(const PairTask& task, const PairMemory& pairs, uint32_t position,
                                              const int32_t* x, typename P::V::I (*acc)[kVectors], Fetch& fetch) {
  using V = typename P::V;
  const uint32_t tail = task.head_dim % 64 > 0 && task.head_dim % 64 <= 32 ? 4 : 0;
  const uint32_t steps = (task.head_dim + 63) / 64 * 8 - tail;
  uint32_t i = 0;
  do {
    const uint32_t unit = i / 4 * 8 + i % 4;
    const uint8_t* u = pairs.keys[unit][position];
    const uint8_t* v = pairs.keys[unit + 4][position];
    const int32_t* at = x + i / 8 * 32 + i % 4 * 4 + i / 4 % 2;
    typename P::Triple codes[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      codes[b] = P::Spread(V::LoadInt(u + b * V::kLanes * 4), V::LoadInt(v + b * V::kLanes * 4));
    }
    FetchAhead<1>(fetch);
    DotTriple<P, kRows, kVectors>(codes, at, kTripleRow, acc);
  } while (++i < steps);
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
  if constexpr (P::kTriples) {
    DotTriples<P, kRows, kVectors>(task, pairs, position, rows.pair.x + first_row * kTripleRow, acc, fetch);
  } else {
    const int32_t* x = rows.pair.x + first_row;
    for (uint32_t unit = 0; unit < task.head_dim / 4; ++unit, x += 2 * kRowBlock) {
      typename V::I units[kVectors];
      KVANT_UNROLL
      for (uint32_t b = 0; b < kVectors; ++b) {
        units[b] = V::LoadInt(pairs.keys[unit][position + b * V::kLanes]);
      }
      FetchAhead<1>(fetch);
      DotUnits<V, 8, 0, kRows, kVectors>(units, x, 1, kRowBlock, acc);
    }
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

/// Hides what a row does not see; its largest logit, or -infinity.
template <class V>
float MaskPairRow(uint32_t hidden, uint32_t visible, uint32_t positions, float* p) {
  if (hidden > 0 || visible < positions) {
    for (uint32_t i = 0; i < positions; ++i) {
      const uint32_t token = TokenAt<V>(i);
      p[i] = token >= hidden && token < visible ? p[i] : -__builtin_inff();
    }
  }
  auto largest = V::Set(-__builtin_inff());
  for (uint32_t i = 0; i < positions; i += V::kLanes) {
    largest = V::Max(largest, V::Load(p + i));
  }
  return V::Largest(largest);
}

template <class P>
[[gnu::always_inline]] inline typename P::V::F PairExp2(typename P::V::F x) {
  if constexpr (P::kTriples) {
    return P::Exp2(x);
  } else {
    return Exp2<typename P::V>(x);
  }
}

inline int32_t* PxOf(const PairTask& task, PairMemory& pairs, uint32_t row, uint32_t group) {
  return pairs.px[row * task.value_groups + group];
}

/// Weights of one row relative to its largest logit in the page, times value scales and cut: px of every group. Adds
/// the weights' sum, times `factor`, to the row's, and so for value zeros. kCut: as triples.
template <class P, bool kCut>
void WeighPairRow(const PairTask& task, float reference, float factor, uint32_t row, RowBlock& rows, PairMemory& pairs,
                  Fetch& fetch) {
  using V = typename P::V;
  const uint32_t positions = PairPositions<V>(task);
  const float middle = 0.5F * static_cast<float>((1U << task.value_bits) - 1);  // of the codes, as in PairCut
  const auto minus_reference = V::Set(-reference);
  const auto to_running = V::Set(factor);
  float* p = pairs.weight;
  auto sum = V::Set(0.0F);
  for (uint32_t i = 0; i < positions; i += V::kLanes) {
    const auto weight = PairExp2<P>(V::Add(V::Load(pairs.logit[row] + i), minus_reference));
    sum = V::Add(sum, weight);
    V::Store(p + i, weight);
  }
  V::Store(rows.sum[row], V::Fma(sum, to_running, V::Load(rows.sum[row])));
  FetchAhead<4>(fetch);
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    int32_t* px = PxOf(task, pairs, row, g);
    const auto unit = V::Set(middle * pairs.value_unit[g]);
    auto zero = V::Set(0.0F);
    for (uint32_t first = 0; first < positions; first += kPairSpan<V>) {
      typename V::I x[4];
      KVANT_UNROLL
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t at = first + k * V::kLanes;
        const auto weight = V::Load(p + at);
        const auto scale = V::Load(pairs.value_scale[g] + at);
        zero = V::Fma(weight, V::Load(pairs.value_zero[g] + at), zero);
        if constexpr (kCut) {
          const auto exact = V::Fma(weight, scale, V::Set(-P::kLargestTriple));
          x[k] = V::Round(exact);
          zero = V::Fma(V::Sub(exact, V::ToFloats(x[k])), unit, zero);
        } else {
          x[k] = V::Round(V::Mul(weight, scale));
          V::StorePaired(reinterpret_cast<std::byte*>(px) + at * sizeof(int16_t), x[k]);
        }
      }
      if constexpr (kCut) {
        P::StoreTriples(x, px + first / 2);
      }
    }
    float* zeros = rows.pair.zero + (size_t{row} * task.value_groups + g) * kMaxLanes;
    V::Store(zeros, V::Fma(zero, to_running, V::Load(zeros)));
  }
}

template <class P, bool kCut>
void WeighPairRows(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  using V = typename P::V;
  const uint32_t positions = PairPositions<V>(task);
  alignas(64) float max[kMaxLanes] = {};
  alignas(64) float factor[kMaxLanes];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    max[row] = MaskPairRow<V>(rows.hidden[row], rows.visible[row], positions, pairs.logit[row]);
  }
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (max[row] > rows.max[row]) {
      RaiseMax<V>(max[row], rows.out_channels, rows, row);
    }
    const bool sees = rows.visible[row] > rows.hidden[row];
    factor[row] = sees ? max[row] - rows.max[row] : -1000.0F;  // 0 as a power of two
  }
  for (uint32_t row = 0; row < rows.num_rows; row += V::kLanes) {
    V::Store(factor + row, Exp2<V>(V::Load(factor + row)));
  }
  Fetch fetch = memory.fetch;
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (factor[row] > 0.0F) {
      WeighPairRow<P, kCut>(task, max[row], factor[row], row, rows, pairs, fetch);
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
    const int32_t* x = px + 2 * PositionOfFour<V>(four);
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

/// The same of weights cut to 12 bits, from -kLargestTriple on: what that takes away is as much for all rows.
template <class P, int kBits, int kFirst, int kRows, uint32_t kFields>
[[gnu::always_inline]] inline void DotTripleValues(const PairTask& task, const uint8_t* values, const int32_t* px,
                                                   typename P::V::I (*acc)[kFields], Fetch& fetch) {
  using V = typename P::V;
  constexpr int kMask = (1 << kBits) - 1;
  const size_t step = size_t{ValueBlocks(task)} * 64;
  const size_t px_row = task.value_groups * kPxWords;
  const uint32_t steps = task.page_tokens / 8;
  typename V::I sum[kFields];
  KVANT_UNROLL
  for (uint32_t f = 0; f < kFields; ++f) {
    sum[f] = V::SetInt(0);
  }
  uint32_t eight = 0;
  do {
    const auto u = V::LoadInt(values);
    const auto v = V::LoadInt(values + step);
    FetchAhead<2>(fetch);
    typename P::Triple codes[kFields];
    codes[0] = P::Spread(P::template Field<kBits * kFirst, kMask>(u), P::template Field<kBits * kFirst, kMask>(v));
    if constexpr (kFields > 1) {
      constexpr int kShift = kBits * (kFirst + 1);
      codes[1] = P::Spread(P::template Field<kShift, kMask>(u), P::template Field<kShift, kMask>(v));
    }
    const int32_t* at = px + eight / 8 * 32 + eight % 8 / 2 * 4 + eight % 2;
    DotTriple<P, kRows, kFields>(codes, at, px_row, acc);
    KVANT_UNROLL
    for (uint32_t f = 0; f < kFields; ++f) {
      sum[f] = P::Dot(sum[f], codes[f].both, 0x01010101);
    }
    values += 2 * step;
  } while (++eight < steps);
  KVANT_UNROLL
  for (uint32_t f = 0; f < kFields; ++f) {
    const auto taken = P::Times(sum[f], static_cast<int32_t>(P::kLargestTriple));
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][f] = V::AddInt(acc[r][f], taken);
    }
  }
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
  const uint8_t* values = pairs.values[part.block] + part.lane * 4;
  const int32_t* px = PxOf(task, pairs, first_row, part.group);
  Fetch fetch = memory.fetch;
  if constexpr (P::kTriples && kBits < 8) {
    DotTripleValues<P, kBits, kFirst, kRows, kFields>(task, values, px, acc, fetch);
  } else {
    DotPairedValues<P, kBits, kFirst, kRows, kFields>(task, values, px, acc, fetch);
  }
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
  if (task.value_bits == 8) {
    WeighPairRows<P, false>(task, rows, pairs, memory);
    AddAllPairValues<P, 8>(task, pairs, rows, memory);
  } else {
    WeighPairRows<P, P::kTriples>(task, rows, pairs, memory);
    if (task.value_bits == 2) {
      AddAllPairValues<P, 2>(task, pairs, rows, memory);
    } else {
      AddAllPairValues<P, 4>(task, pairs, rows, memory);
    }
  }
}

/// Sums by place to sums by channel.
template <class P, uint32_t kFields>
void OrderValues(const float* places, uint32_t blocks, float* channels) {
  for (uint32_t block = 0; block < blocks; ++block, places += 16 * kFields, channels += 16 * kFields) {
    if constexpr (P::kTriples && kFields == 4) {
      P::Weave4(places, channels);
    } else {
      for (uint32_t i = 0; i < 16; ++i) {
        for (uint32_t f = 0; f < kFields; ++f) {
          channels[i * kFields + f] = places[f * 16 + i];
        }
      }
    }
  }
}

template <class P>
void FinishPairRows(const PairTask& task, bool rotated, RowBlock& rows) {
  using V = typename P::V;
  const uint32_t fields = ValueFields(task.value_bits);
  const auto order = fields == 4 ? OrderValues<P, 4> : fields == 2 ? OrderValues<P, 2> : OrderValues<P, 1>;
  alignas(64) float row[codec::kMaxHeadDim];
  for (uint32_t r = 0; r < rows.num_rows; ++r) {
    order(rows.pair.out + size_t{r} * rows.pair.value_places, ValueBlocks(task), row);
    const float* zeros = rows.pair.zero + size_t{r} * task.value_groups * kMaxLanes;
    for (uint32_t g = 0; g < task.value_groups; ++g) {
      float sum = 0.0F;
      for (uint32_t i = 0; i < kMaxLanes; i += V::kLanes) {
        sum += V::Sum(V::Load(zeros + g * kMaxLanes + i));
      }
      const auto zero = V::Set(sum);
      for (uint32_t c = g * task.value_group; c < (g + 1) * task.value_group; c += V::kLanes) {
        V::Store(row + c, V::Add(V::Load(row + c), zero));
      }
    }
    if (rotated) {
      RotateValues(task.head_dim, row);
    }
    float* out = rows.out + size_t{r} * rows.out_channels;
    for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
      V::Store(out + c, V::Add(V::Load(out + c), V::Load(row + c)));
    }
  }
}

template <class P>
constexpr PairKernels MakePairKernels() {
  return {PreparePairRows<P>, LoadPairPage<P>, AttendPairPage<P>, FinishPairRows<P>};
}

}  // namespace
}  // namespace kvant::kernels
