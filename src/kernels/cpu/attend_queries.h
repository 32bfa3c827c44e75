#pragma once

#include "kernels/cpu/attend_common.h"

// Query rows in the form in which they meet the keys.
namespace kvant::kernels {
namespace {

/// One row times the logit scale (and the key scales), padded with zeros; returns q·mean times the logit scale.
template <class V>
float ScaleRow(const RowSource& source, uint32_t row, uint32_t padded, float* scaled) {
  const float* q = source.rows[row];
  const auto scale = V::Set(source.scale);
  auto mean = V::Set(0.0F);
  for (uint32_t c = 0; c < padded; ++c) {
    scaled[c] = c < source.head_dim ? q[c] : 0.0F;
  }
  const bool equalized = source.key_mean != nullptr;
  uint32_t c = 0;
  float tail_mean = 0.0F;
  for (; c + V::kLanes <= source.head_dim; c += V::kLanes) {
    auto value = V::Mul(V::Load(scaled + c), scale);
    if (equalized) {
      mean = V::Fma(value, V::LoadHalf(source.key_mean + c), mean);
      value = V::Mul(value, V::LoadHalf(source.key_scale + c));
    }
    V::Store(scaled + c, value);
  }
  if (c < source.head_dim) {
    // The last channels of a ragged row, through a padded copy of the map.
    alignas(64) Half mean_tail[V::kLanes] = {};
    alignas(64) Half scale_tail[V::kLanes] = {};
    for (uint32_t i = 0; equalized && c + i < source.head_dim; ++i) {
      mean_tail[i] = source.key_mean[c + i];
      scale_tail[i] = source.key_scale[c + i];
    }
    auto value = V::Mul(V::Load(scaled + c), scale);
    if (equalized) {
      tail_mean = V::Sum(V::Mul(value, V::LoadHalf(mean_tail)));
      value = V::Mul(value, V::LoadHalf(scale_tail));
    }
    V::Store(scaled + c, value);
  }
  return V::Sum(mean) + tail_mean;
}

/// A row cut to 16 bits: row ≈ scale · x, and the sum of x.
struct CutSums {
  float scale;
  int32_t sum;
};

/// Cut a scaled row to 16 bits, paired, into column `row` of x (RowBlock::x).
template <class V>
CutSums CutRow(const float* scaled, uint32_t head_dim, uint32_t row, int32_t* x_rows) {
  const uint32_t padded = RoundUpTo(head_dim, 8);
  auto largest = V::Set(0.0F);
  for (uint32_t c = 0; c < padded; c += V::kLanes) {
    largest = V::Max(largest, V::Abs(V::Load(scaled + c)));
  }
  constexpr float kSmallestMax = 1e-30F;  // below, the reciprocal would overflow; such a row has equal logits anyway
  const float max = V::Largest(largest);
  const auto inverse = V::Set(max > kSmallestMax ? kLargestX / max : 0.0F);
  alignas(64) int32_t pairs[codec::kMaxHeadDim / 2];
  auto sum = V::SetInt(0);
  for (uint32_t c = 0; c < padded; c += V::kLanes) {
    const auto x = V::Round(V::Mul(V::Load(scaled + c), inverse));
    sum = V::AddInt(sum, x);
    V::StorePaired(reinterpret_cast<std::byte*>(pairs) + c * sizeof(int16_t), x);
  }
  for (uint32_t i = 0; i < padded / 2; ++i) {
    x_rows[i * kRowBlock + row] = pairs[i];
  }
  return {max / kLargestX, V::SumInt(sum)};
}

template <class V>
void PrepareRows(TokenCodec codec, const RowSource& source, RowBlock& rows) {
  alignas(64) float scaled[codec::kMaxHeadDim];
  for (uint32_t row = 0; row < source.num_rows; ++row) {
    const float mean = ScaleRow<V>(source, row, RoundUpTo(source.head_dim, 16), scaled);
    if (codec == TokenCodec::kFp16) {
      rows.q_mean[row] = mean;
      for (uint32_t c = 0; c < source.head_dim; ++c) {
        rows.q[c * kRowBlock + row] = scaled[c];
      }
    } else {
      rows.x_mean[row] = mean;
      const CutSums sums = CutRow<V>(scaled, source.head_dim, row, rows.x);
      rows.x_scale[row] = sums.scale;
      rows.x_sum[row] = sums.sum;
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
