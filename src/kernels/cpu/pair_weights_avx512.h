#pragma once

#include "kernels/cpu/attend_softmax.h"
#include "kernels/cpu/pair_logits_avx512.h"

// Logits of a page into weights times the value scales, cut to words. A few rows at a time are in registers from the
// sums that were looked up to the words.
namespace kvant::kernels {
namespace {

constexpr uint16_t kLowWords[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                    32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
constexpr float kMantissa = 0x1p23F;  ///< what a float's exponent is counted in, seen as an integer

/// 2^x for x <= 0, given x · kMantissa, to 9e-5 relative, nearly 0 where x < -100: the polynomial of degree 3 through
/// (0, 1) with the smallest largest relative error on [0, 1], of 1 + fraction. VREDUCEPS and VSCALEFPS would cost two
/// cycles each.
[[gnu::always_inline]] inline V::F PairExp2(V::F x) {
  constexpr int32_t kLeast = -100 * (1 << 23);  // what is below the range of integers becomes the least of them
  constexpr int kAndOr = 0xEA;
  const __m512i bits = _mm512_max_epi32(V::Round(x), V::SetInt(kLeast));
  const auto m =
      _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, V::SetInt(0x007FFFFF), V::SetInt(0x3F800000), kAndOr));
  auto p = V::Fma(m, V::Set(0.0770670420F), V::Set(-0.00355613511F));
  p = V::Fma(p, m, V::Set(0.471027930F));
  p = V::Fma(p, m, V::Set(0.455461163F));
  const __m512i exponent = V::And(bits, V::SetInt(static_cast<int32_t>(0xFF800000)));
  return _mm512_castsi512_ps(V::AddInt(_mm512_castps_si512(p), exponent));
}

inline float* ZerosOf(const PairTask& task, RowBlock& rows, uint32_t row, uint32_t group) {
  return rows.pair.zero + (size_t{row} * task.value_groups + group) * kMaxLanes;
}
inline float MiddleOf(const PairTask& task) { return 0.5F * static_cast<float>((1U << task.value_bits) - 1); }

/// What the rows' steps leave for each other: a step is done for all rows before the next one, since what it ends with,
/// sums over lanes and divisions, is waited for longer than a row's other work takes.
struct PageWeights {
  float scale[kRowBlock];  ///< logits are scale · PairMemory::logit + zero
  float zero[kRowBlock];
  float largest[kRowBlock];                       ///< logit
  alignas(64) float factor[kMaxLanes];            ///< of the weights in the row's running sums
  alignas(64) float total[kRowBlock][kMaxLanes];  ///< Σ weight · value scale, lane by lane
  float inverse[kRowBlock];                       ///< of the unit that these are cut to
};

/// Of the sums that were looked up, where a row sees the whole page and nothing is capped.
template <int kLevels, int kVectors>
void JoinRow(const RowBlock& rows, uint32_t row, PairMemory& pairs, PageWeights& page) {
  V::F x[kVectors];
  JoinPlanes<kLevels>(pairs.sums[row], x);
  auto largest = x[0];
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    V::Store(pairs.logit[row] + i * V::kLanes, x[i]);
    largest = V::Max(largest, x[i]);
  }
  page.scale[row] = rows.pair.x_scale[row];
  page.zero[row] = rows.pair.x_zero[row];
  page.largest[row] = V::Largest(largest) * page.scale[row] + page.zero[row];
}

/// The same with caps, and without what a row does not see.
inline void MaskRow(const PairTask& task, const RowBlock& rows, uint32_t row, PairMemory& pairs, PageWeights& page) {
  float* logit = pairs.logit[row];
  for (uint32_t i = 0; i < Positions(task); i += V::kLanes) {
    V::Store(logit + i, V::Fma(V::Load(logit + i), V::Set(page.scale[row]), V::Set(page.zero[row])));
  }
  if (rows.cap_bits > 0.0F) {
    CapRow<V>(rows.cap_bits, Positions(task), logit);
  }
  page.largest[row] = MaskPairRow<V>(rows.hidden[row], rows.visible[row], Positions(task), TokenOfLogit, logit);
  page.scale[row] = 1.0F;
  page.zero[row] = 0.0F;
}

inline void JoinRows(const PairTask& task, const RowBlock& rows, PairMemory& pairs, PageWeights& page) {
  WithCount<kMaxKeyBits>(task.widths[0], [&](auto levels) {
    constexpr int kLevels = decltype(levels)::value;
    const auto join = Halves(task) == 2 ? JoinRow<kLevels, 8> : JoinRow<kLevels, 4>;
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      join(rows, row, pairs, page);
    }
  });
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (rows.cap_bits > 0.0F || rows.hidden[row] > 0 || rows.visible[row] < Positions(task)) {
      MaskRow(task, rows, row, pairs, page);
    }
  }
}

/// What a row's weights, relative to its largest logit in the page, count: the running maximum is raised to that.
/// Returns their exponent; `largest` is the reference.
inline float RaiseTo(float& largest, RowBlock& rows, uint32_t row) {
  if (rows.visible[row] <= rows.hidden[row]) {
    largest = 0.0F;
    return -1000.0F;  // 0 as a power of two
  }
  RaiseMax<V>(largest, rows.out_channels, rows, row);
  return largest - rows.max[row];
}

template <int kVectors>
using RowVectors = V::F[kVectors];

template <int kVectors>
[[gnu::always_inline]] inline void LoadRow(const float* from, RowVectors<kVectors>& row) {
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    row[i] = V::Load(from + i * V::kLanes);
  }
}

template <int kVectors>
[[gnu::always_inline]] inline void StoreRow(const RowVectors<kVectors>& row, float* to) {
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    V::Store(to + i * V::kLanes, row[i]);
  }
}

/// Logits become weights, and their sum, times the row's factor, is added to `row_sum`.
template <int kVectors>
[[gnu::always_inline]] inline void WeighRow(const PageWeights& page, uint32_t row, RowVectors<kVectors>& weights,
                                            float* row_sum) {
  const auto scale = V::Set(page.scale[row] * kMantissa);
  const auto zero = V::Set((page.zero[row] - page.largest[row]) * kMantissa);
  auto sum = V::Set(0.0F);
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    weights[i] = PairExp2(V::Fma(weights[i], scale, zero));
    sum = V::Add(sum, weights[i]);
  }
  V::Store(row_sum, V::Fma(sum, V::Set(page.factor[row]), V::Load(row_sum)));
}

/// Weights times one group's value scales, and their total. Adds what weights · zeros give to the row's, as if zeros
/// were at the middle of the codes: what is cut off is to meet codes around 0 only.
template <int kVectors>
[[gnu::always_inline]] inline void ScaleRow(const PairTask& task, const RowVectors<kVectors>& weights, uint32_t row,
                                            uint32_t group, PageWeights& page, RowBlock& rows, PairMemory& pairs) {
  RowVectors<kVectors> scaled;
  auto zero = V::Set(0.0F);
  auto total = V::Set(0.0F);
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    zero = V::Fma(weights[i], V::Load(pairs.value_zero[group] + i * V::kLanes), zero);
    scaled[i] = V::Mul(weights[i], V::Load(pairs.value_scale[group] + i * V::kLanes));
    total = V::Add(total, scaled[i]);
  }
  StoreRow<kVectors>(scaled, pairs.scaled[row]);
  V::Store(page.total[row], total);
  float* zeros = ZerosOf(task, rows, row, group);
  const auto sum = V::Fma(total, V::Set(MiddleOf(task)), zero);
  V::Store(zeros, V::Fma(sum, V::Set(page.factor[row]), V::Load(zeros)));
}

template <int kVectors>
void ScaleRows(const PairTask& task, uint32_t group, PageWeights& page, RowBlock& rows, PairMemory& pairs,
               StretchMemory& memory) {
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    FetchAhead<2>(memory.fetch);
    RowVectors<kVectors> weights;
    LoadRow<kVectors>(pairs.logit[row], weights);
    if (group == 0) {
      WeighRow<kVectors>(page, row, weights, rows.sum[row]);
      if (task.value_groups > 1) {
        StoreRow<kVectors>(weights, pairs.logit[row]);
      }
    }
    ScaleRow<kVectors>(task, weights, row, group, page, rows, pairs);
  }
}

/// So fine a unit that a row's total just fits 16 bits; p_scale becomes that times the row's factor.
inline void FindUnits(uint32_t group, const RowBlock& rows, PageWeights& page, PairMemory& pairs) {
  for (uint32_t row = 0; row < rows.num_rows; row += kSumRows) {
    const V::F totals[kSumRows] = {V::Load(page.total[row]), V::Load(page.total[row + 1]), V::Load(page.total[row + 2]),
                                   V::Load(page.total[row + 3])};
    float sums[kSumRows];
    SumFour(totals, sums);
    KVANT_UNROLL
    for (uint32_t r = 0; r < kSumRows; ++r) {
      page.inverse[row + r] = kFullWeights / (sums[r] + kLeastSum);
      pairs.p_scale[row + r][group] = (sums[r] + kLeastSum) * (page.factor[row + r] / kFullWeights);
    }
  }
}

/// A row's scaled weights as words. Takes back from the sums of zeros what the middles of the codes get from these.
template <int kVectors>
void CutRow(const PairTask& task, uint32_t row, uint32_t group, const PageWeights& page, RowBlock& rows,
            PairMemory& pairs) {
  constexpr float kToInt = 0x1.8p23F;  // added, a number's integer is in the lowest bits
  const auto inverse = V::Set(page.inverse[row]);
  const __m512i low_words = _mm512_loadu_si512(kLowWords);
  auto cut = V::SetInt(static_cast<int32_t>(-kVectors * __builtin_bit_cast(uint32_t, kToInt)));
  int16_t* words = PxOf(task, pairs, row, group);
  KVANT_UNROLL
  for (int i = 0; i < kVectors; i += 2) {
    const float* scaled = pairs.scaled[row] + i * V::kLanes;
    const __m512i first = _mm512_castps_si512(V::Fma(V::Load(scaled), inverse, V::Set(kToInt)));
    const __m512i second = _mm512_castps_si512(V::Fma(V::Load(scaled + V::kLanes), inverse, V::Set(kToInt)));
    cut = V::AddInt(cut, V::AddInt(first, second));
    _mm512_store_si512(words + i * V::kLanes, _mm512_permutex2var_epi16(first, low_words, second));
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(words + kVectors * V::kLanes), _mm256_setzero_si256());
  float* zeros = ZerosOf(task, rows, row, group);
  const auto middle = V::Set(-MiddleOf(task) * pairs.p_scale[row][group]);
  V::Store(zeros, V::Fma(V::ToFloats(cut), middle, V::Load(zeros)));
}

template <int kVectors>
void WeighRows(const PairTask& task, PageWeights& page, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    ScaleRows<kVectors>(task, g, page, rows, pairs, memory);
    FindUnits(g, rows, page, pairs);
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      CutRow<kVectors>(task, row, g, page, rows, pairs);
    }
  }
}

inline void MakeWeights(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  PageWeights page;
  JoinRows(task, rows, pairs, page);
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    page.factor[row] = RaiseTo(page.largest[row], rows, row);
  }
  V::Store(page.factor, Exp2<V>(V::Load(page.factor)));
  Halves(task) == 2 ? WeighRows<8>(task, page, rows, pairs, memory) : WeighRows<4>(task, page, rows, pairs, memory);
}

}  // namespace
}  // namespace kvant::kernels
