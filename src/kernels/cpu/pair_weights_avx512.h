#pragma once

#include "kernels/cpu/attend_softmax.h"
#include "kernels/cpu/pair_logits_avx512.h"

// Logits of a page into weights times the value scales, cut to words.
namespace kvant::kernels {
namespace {

/// 2^x for x <= 0 to 9e-5 relative, nearly 0 where x < -100: the polynomial of degree 3 through (0, 1) with the
/// smallest largest relative error on [0, 1].
[[gnu::always_inline]] inline __m512 PairExp2(__m512 x) {
  const __m512 least = _mm512_max_ps(x, _mm512_set1_ps(-100.0F));
  const __m512 r = _mm512_reduce_ps(least, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.0770670420F), _mm512_set1_ps(0.227644991F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.695116786F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, least);
}

/// Logits of one row become weights relative to its largest in the page. Adds their sum, times `factor`, to the row's.
template <int kVectors>
void WeighRow(float reference, float factor, float* p, float* row_sum) {
  const auto minus_reference = V::Set(-reference);
  auto sum = V::Set(0.0F);
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const auto weight = PairExp2(V::Add(V::Load(p + i * V::kLanes), minus_reference));
    sum = V::Add(sum, weight);
    V::Store(p + i * V::kLanes, weight);
  }
  V::Store(row_sum, V::Fma(sum, V::Set(factor), V::Load(row_sum)));
}

inline float* ZerosOf(const PairTask& task, RowBlock& rows, uint32_t row, uint32_t group) {
  return rows.pair.zero + (size_t{row} * task.value_groups + group) * kMaxLanes;
}
inline float MiddleOf(const PairTask& task) { return 0.5F * static_cast<float>((1U << task.value_bits) - 1); }

/// Sums of weights times one group's value scales: p_scale. Adds those of weight · value zero, times `factor`, to the
/// rows', as if zeros were at the middle of the codes: what is cut off is to meet codes around 0 only.
template <int kRows>
void MeasureWeights(const PairTask& task, uint32_t first_row, uint32_t group, const float* factor, RowBlock& rows,
                    PairMemory& pairs) {
  V::F zero[kRows];
  V::F total[kSumRows];
  KVANT_UNROLL
  for (int r = 0; r < kSumRows; ++r) {
    total[r] = V::Set(0.0F);
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    zero[r] = V::Set(0.0F);
  }
  for (uint32_t i = 0; i < Positions(task); i += V::kLanes) {
    const auto value_zero = V::Load(pairs.value_zero[group] + i);
    const auto value_scale = V::Load(pairs.value_scale[group] + i);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto weight = V::Load(pairs.logit[first_row + r] + i);
      zero[r] = V::Fma(weight, value_zero, zero[r]);
      total[r] = V::Fma(weight, value_scale, total[r]);
    }
  }
  float totals[kSumRows];
  SumFour(total, totals);
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + static_cast<uint32_t>(r);
    const auto sum = V::Fma(total[r], V::Set(MiddleOf(task)), zero[r]);
    float* zeros = ZerosOf(task, rows, row, group);
    V::Store(zeros, V::Fma(sum, V::Set(factor[row]), V::Load(zeros)));
    pairs.p_scale[row][group] = totals[r] + kLeastSum;
  }
}

/// Weights times one group's value scales as words, as fine as 16 bits allow their sum; p_scale becomes their unit
/// times `factor`. Takes the middle of the codes back from the sums of zeros.
template <int kRows>
void CutWeights(const PairTask& task, uint32_t first_row, uint32_t group, const float* factor, RowBlock& rows,
                PairMemory& pairs) {
  V::F inverse[kRows];
  V::I cut[kRows];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    inverse[r] = V::Set(kFullWeights / pairs.p_scale[first_row + r][group]);
    cut[r] = V::SetInt(0);
  }
  uint32_t i = 0;
  for (; i < Positions(task); i += 2 * V::kLanes) {
    const auto low = V::Load(pairs.value_scale[group] + i);
    const auto high = V::Load(pairs.value_scale[group] + i + V::kLanes);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float* p = pairs.logit[first_row + r] + i;
      const auto first = V::Round(V::Mul(V::Mul(V::Load(p), inverse[r]), low));
      const auto second = V::Round(V::Mul(V::Mul(V::Load(p + V::kLanes), inverse[r]), high));
      const __m512i words = _mm512_packus_epi32(first, second);
      cut[r] = V::AddInt(cut[r], V::AddInt(first, second));
      _mm512_store_si512(PxOf(task, pairs, first_row + r, group) + i, words);
    }
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + static_cast<uint32_t>(r);
    _mm256_store_si256(reinterpret_cast<__m256i*>(PxOf(task, pairs, row, group) + i), _mm256_setzero_si256());
    const float unit = pairs.p_scale[row][group] * factor[row] / kFullWeights;
    float* zeros = ZerosOf(task, rows, row, group);
    V::Store(zeros, V::Fma(V::ToFloats(cut[r]), V::Set(-MiddleOf(task) * unit), V::Load(zeros)));
    pairs.p_scale[row][group] = unit;
  }
}

/// The weights of all rows, step by step: what one row waits for, others fill.
template <int kVectors>
void WeighRows(const PairTask& task, const float* max, const float* factor, RowBlock& rows, PairMemory& pairs) {
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    WeighRow<kVectors>(max[row], factor[row], pairs.logit[row], rows.sum[row]);
  }
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    ForRows<1>({0, rows.num_rows}, [&](auto count, uint32_t row) {
      MeasureWeights<decltype(count)::value>(task, row, g, factor, rows, pairs);
    });
    ForRows<1>({0, rows.num_rows}, [&](auto count, uint32_t row) {
      CutWeights<decltype(count)::value>(task, row, g, factor, rows, pairs);
    });
  }
}

inline void MakeWeights(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  float max[kRowBlock];
  MakeAllLogits(task, rows, pairs, max);
  alignas(64) float factor[kMaxLanes] = {};
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (max[row] > rows.max[row]) {
      RaiseMax<V>(max[row], rows.out_channels, rows, row);
    }
    if (rows.visible[row] > rows.hidden[row]) {
      factor[row] = max[row] - rows.max[row];
    } else {
      factor[row] = -1000.0F;  // 0 as a power of two
      max[row] = 0.0F;
    }
    FetchAhead<2, 1>(memory.fetch);
  }
  V::Store(factor, Exp2<V>(V::Load(factor)));
  Halves(task) == 2 ? WeighRows<8>(task, max, factor, rows, pairs) : WeighRows<4>(task, max, factor, rows, pairs);
}

}  // namespace
}  // namespace kvant::kernels
