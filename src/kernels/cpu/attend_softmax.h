#pragma once

#include "kernels/cpu/attend_common.h"

// Between logits and values: the running softmax of a block of rows. Logits are in bits here (times log2 e), so that a
// weight is a power of two.
namespace kvant::kernels {
namespace {

/// 2^x to about 2e-7 relative for x <= kHeadroomBits, 1 at 0, and 0 where x < -80: what is that small adds nothing to a
/// softmax in fp32, and the products made from the rest stay clear of subnormal numbers. The polynomial is the one of
/// degree 5 through (0, 1) with the smallest largest relative error on [0, 1], 8e-8.
template <class V>
[[gnu::always_inline]] inline typename V::F Exp2(typename V::F x) {
  constexpr float kSmallest = -80.0F;
  const auto r = V::Fraction(x);
  auto p = V::Fma(r, V::Set(0.00186713005F), V::Set(0.00901703071F));
  p = V::Fma(p, r, V::Set(0.0557999127F));
  p = V::Fma(p, r, V::Set(0.240164444F));
  p = V::Fma(p, r, V::Set(0.693151295F));
  p = V::Fma(p, r, V::Set(1.0F));
  return V::ScaleByFloor(p, x, kSmallest);
}

/// The value parameters of a stretch as the weights need them, once for all rows: zeros in fp32, and scales so that the
/// largest weight, 1, times the largest scale gives kLargestX. Returns the unit of what is cut.
template <class V, TokenCodec kCodec>
float LoadValueParams(const Stretch& stretch, uint32_t padded, StretchMemory& memory) {
  constexpr float kSmallestScale = 0x1p-24F;  // of fp16; where all are 0 the values are, too
  auto largest = V::Set(kSmallestScale);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    const auto scale = V::LoadHalf(stretch.value_scales + t);
    largest = V::Max(largest, scale);
    V::Store(memory.value_scale + t, scale);
    if constexpr (codec::HasZero(kCodec)) {
      V::Store(memory.value_zero + t, V::LoadHalf(stretch.value_zeros + t));
    }
  }
  const float max = V::Largest(largest);
  const auto inverse = V::Set(kLargestX / max);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    V::Store(memory.value_scale + t, V::Mul(V::Load(memory.value_scale + t), inverse));
  }
  return max / kLargestX;
}

/// Logits become cap · tanh(logit / cap), all in bits: with z = e^(-2 logit / cap), 2 cap / (1 + z) - cap.
template <class V>
void CapRow(float cap, uint32_t padded, float* p) {
  constexpr float kLog2E = 1.44269504F;
  const auto least = V::Set(-30.0F * cap);  // where tanh has long been -1, and z is still a number
  const auto to_z = V::Set(-2.0F * kLog2E / cap);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    const auto z = Exp2<V>(V::Mul(V::Max(V::Load(p + t), least), to_z));
    V::Store(p + t, V::Add(V::Div(V::Set(2.0F * cap), V::Add(z, V::Set(1.0F))), V::Set(-cap)));
  }
}

/// Hides what a row does not see; the largest logit of what it does, or -infinity.
template <class V>
float MaskRow(uint32_t hidden, uint32_t visible, uint32_t padded, float* p) {
  for (uint32_t t = 0; t < hidden; ++t) {
    p[t] = -__builtin_inff();
  }
  for (uint32_t t = visible; t < padded; ++t) {
    p[t] = -__builtin_inff();
  }
  auto largest = V::Set(-__builtin_inff());
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    largest = V::Max(largest, V::Load(p + t));
  }
  return V::Largest(largest);
}

/// What one pass over a row's weights gives.
template <class V>
struct RowSums {
  typename V::F weight;
  typename V::F zero;  ///< of weight · value zero
  typename V::I x;     ///< of the cut weights
};

/// Logits become weights 2^(logit - reference): in place (kFp16), or times the value scales, cut to 16 bits and paired.
template <class V, TokenCodec kCodec>
RowSums<V> WeighRow(float reference, uint32_t padded, uint32_t row, StretchMemory& memory) {
  RowSums<V> sums{V::Set(0.0F), V::Set(0.0F), V::SetInt(0)};
  const auto minus_reference = V::Set(-reference);
  float* p = memory.p[row];
  auto* px = reinterpret_cast<std::byte*>(memory.px[row]);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    FetchAhead<2>(memory.fetch);
    const auto weight = Exp2<V>(V::Add(V::Load(p + t), minus_reference));
    sums.weight = V::Add(sums.weight, weight);
    if constexpr (codec::HasZero(kCodec)) {
      sums.zero = V::Fma(weight, V::Load(memory.value_zero + t), sums.zero);
    }
    if constexpr (codec::HasScale(kCodec)) {
      const auto x = V::Round(V::Mul(weight, V::Load(memory.value_scale + t)));
      V::StorePaired(px + t * sizeof(int16_t), x);
      if constexpr (!codec::HasZero(kCodec)) {
        sums.x = V::AddInt(sums.x, x);
      }
    } else {
      V::Store(p + t, weight);
    }
  }
  return sums;
}

/// A weight is at most so many bits above 1. A row's sums, in fp32, are as exact with larger numbers.
constexpr float kHeadroomBits = 16.0F;

/// The row's earlier sums and output, made relative to a new largest logit where it is far above what they are relative
/// to: to do so for every new one costs as much as a page's softmax.
template <class V>
void RaiseMax(float max, uint32_t value_channels, RowBlock& rows, uint32_t row) {
  if (!(max > rows.max[row] + kHeadroomBits)) {
    return;
  }
  if (rows.max[row] == -__builtin_inff()) {  // nothing to be made relative
    rows.max[row] = max;
    return;
  }
  const auto keep = Exp2<V>(V::Set(rows.max[row] - max));
  const auto scale = [&](float* at, uint32_t count) {
    for (uint32_t c = 0; c < count; c += V::kLanes) {
      V::Store(at + c, V::Mul(V::Load(at + c), keep));
    }
  };
  scale(rows.out + size_t{row} * value_channels, value_channels);
  // All lanes: where pages are met by other kernels than sinks and residual, those may have filled more than these do.
  scale(rows.sum[row], kMaxLanes);
  scale(rows.zero[row], kMaxLanes);
  if (rows.pair.active) {
    scale(rows.pair.out + size_t{row} * rows.pair.value_places, rows.pair.value_places);
    const size_t zeros = size_t{rows.pair.value_groups} * kMaxLanes;
    scale(rows.pair.zero + row * zeros, static_cast<uint32_t>(zeros));
  }
  rows.max[row] = max;
}

/// Add what a row's weights, relative to the stretch's largest logit, give relative to the running maximum.
template <class V>
void AddSums(const RowSums<V>& sums, typename V::F factor, RowBlock& rows, uint32_t row) {
  V::Store(rows.sum[row], V::Fma(sums.weight, factor, V::Load(rows.sum[row])));
  V::Store(rows.zero[row], V::Fma(sums.zero, factor, V::Load(rows.zero[row])));
}

/// Logits become weights of the values. Coded values take them relative to the stretch's own maximum, so that they are
/// cut with equal care wherever the stretch lies, and p_scale brings them to the running one; fp16 values at once.
template <class V, TokenCodec kCodec>
void SoftmaxRows(const Stretch& stretch, uint32_t padded, RowBlock& rows, StretchMemory& memory) {
  float unit = 1.0F;
  if constexpr (codec::HasScale(kCodec)) {
    unit = LoadValueParams<V, kCodec>(stretch, padded, memory);
  }
  float max[kRowBlock];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    max[row] = MaskRow<V>(rows.hidden[row], rows.visible[row], padded, memory.p[row]);
  }
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    RaiseMax<V>(max[row], stretch.value_channels, rows, row);
    const bool sees = rows.visible[row] > rows.hidden[row];
    const float reference = codec::HasScale(kCodec) && sees ? max[row] : sees ? rows.max[row] : 0.0F;
    const RowSums<V> sums = WeighRow<V, kCodec>(reference, padded, row, memory);
    const auto factor = Exp2<V>(V::Set(sees ? reference - rows.max[row] : 0.0F));
    AddSums<V>(sums, factor, rows, row);
    memory.p_scale[row] = V::Largest(factor) * unit;
    memory.px_sum[row] = V::SumInt(sums.x);
  }
}

}  // namespace
}  // namespace kvant::kernels
