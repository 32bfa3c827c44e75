#pragma once

#include "kernels/cpu/attend_common.h"

// Between logits and values: the running softmax of a block of rows.
namespace kvant::kernels {
namespace {

/// e^x to about 2e-7 relative for x <= 0, and 0 where x < -60: what is that small adds nothing to a softmax in fp32, and
/// the products made from the rest stay clear of subnormal numbers. 2^n · e^r with |r| <= ln2/2, e^r by its series to
/// r^6, whose next term is 1.2e-7.
template <class V>
[[gnu::always_inline]] inline typename V::F Exp(typename V::F x) {
  constexpr float kSmallest = -60.0F;
  const auto clamped = V::Max(x, V::Set(kSmallest));
  const auto n = V::Round(V::Mul(clamped, V::Set(1.44269504F)));
  const auto nf = V::ToFloats(n);
  auto r = V::Fma(nf, V::Set(-0.693359375F), clamped);
  r = V::Fma(nf, V::Set(2.12194440e-4F), r);
  auto p = V::Fma(r, V::Set(1.0F / 720.0F), V::Set(1.0F / 120.0F));
  p = V::Fma(p, r, V::Set(1.0F / 24.0F));
  p = V::Fma(p, r, V::Set(1.0F / 6.0F));
  p = V::Fma(p, r, V::Set(0.5F));
  p = V::Fma(V::Mul(p, r), r, r);
  return V::ZeroBelow(V::ScaleByPowerOf2(V::Add(p, V::Set(1.0F)), n), x, kSmallest);
}

/// What one pass over a row's weights gives: exp(logit - max) is the weight of a token.
template <class V>
struct RowWeights {
  typename V::F sum;      ///< of the weights
  typename V::F zero;     ///< of weight · value zero
  typename V::F largest;  ///< magnitude of weight · value scale
};

/// Logits become weights (kFp16), or weights times the tokens' value scales.
template <class V, TokenCodec kCodec>
RowWeights<V> WeighRow(const Stretch& stretch, uint32_t padded, float max, float* p) {
  RowWeights<V> row{V::Set(0.0F), V::Set(0.0F), V::Set(0.0F)};
  const auto minus_max = V::Set(-max);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    auto weight = Exp<V>(V::Add(V::Load(p + t), minus_max));
    row.sum = V::Add(row.sum, weight);
    if constexpr (codec::HasZero(kCodec)) {
      row.zero = V::Fma(weight, V::LoadHalf(stretch.value_zeros + t), row.zero);
    }
    if constexpr (codec::HasScale(kCodec)) {
      weight = V::Mul(weight, V::LoadHalf(stretch.value_scales + t));
      row.largest = V::Max(row.largest, V::Abs(weight));
    }
    V::Store(p + t, weight);
  }
  return row;
}

/// Cut a row of scaled weights to 16 bits.
template <class V>
void CutWeights(float max, uint32_t padded, uint32_t row, StretchMemory& memory) {
  const auto inverse = V::Set(max > 0.0F ? kLargestX / max : 0.0F);
  const float* p = memory.p[row];
  auto* px = reinterpret_cast<std::byte*>(memory.px[row]);
  auto sum = V::SetInt(0);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    const auto x = V::Round(V::Mul(V::Load(p + t), inverse));
    sum = V::AddInt(sum, x);
    V::StorePaired(px + t * sizeof(int16_t), x);
  }
  memory.p_scale[row] = max / kLargestX;
  memory.px_sum[row] = V::SumInt(sum);
}

/// The row's earlier sum and output, made relative to its new maximum.
template <class V>
void RaiseMax(float max, uint32_t value_channels, RowBlock& rows, uint32_t row) {
  const auto keep = Exp<V>(V::Set(rows.max[row] - max));
  float* out = rows.out + size_t{row} * value_channels;
  for (uint32_t c = 0; c < value_channels; c += V::kLanes) {
    V::Store(out + c, V::Mul(V::Load(out + c), keep));
  }
  rows.sum[row] *= V::Largest(keep);
  rows.max[row] = max;
}

/// Hides what a row does not see, and finds its new running maximum; 0 for a row that sees nothing.
template <class V>
float MaskRow(const RowBlock& rows, uint32_t padded, uint32_t row, float* p) {
  const uint32_t visible = rows.visible[row];
  for (uint32_t t = visible; t < padded; ++t) {
    p[t] = -__builtin_inff();
  }
  if (visible == 0) {
    return 0.0F;
  }
  auto largest = V::Set(rows.max[row]);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    largest = V::Max(largest, V::Load(p + t));
  }
  return V::Largest(largest);
}

/// Logits become weights of the values, relative to each row's new running maximum. Step by step for all rows, since
/// the steps of one row wait for each other.
template <class V, TokenCodec kCodec>
void SoftmaxRows(const Stretch& stretch, uint32_t padded, RowBlock& rows, StretchMemory& memory) {
  float max[kRowBlock];
  float largest[kRowBlock];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    max[row] = MaskRow<V>(rows, padded, row, memory.p[row]);
  }
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    const RowWeights<V> weights = WeighRow<V, kCodec>(stretch, padded, max[row], memory.p[row]);
    if (rows.visible[row] > 0 && max[row] > rows.max[row]) {
      RaiseMax<V>(max[row], stretch.value_channels, rows, row);
    }
    rows.sum[row] += V::Sum(weights.sum);
    memory.p_zero[row] = V::Sum(weights.zero);
    largest[row] = V::Largest(weights.largest);
  }
  if constexpr (codec::HasScale(kCodec)) {
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      CutWeights<V>(largest[row], padded, row, memory);
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
