#pragma once

#include "kernels/cpu/attend_common.h"

// The running softmax of a block of rows to where the caller wants it.
namespace kvant::kernels {
namespace {

/// All of kMaxLanes, whatever the lanes of V.
template <class V>
float SumOf(const float* lanes) {
  auto sum = V::Load(lanes);
  for (uint32_t i = V::kLanes; i < kMaxLanes; i += V::kLanes) {
    sum = V::Add(sum, V::Load(lanes + i));
  }
  return V::Sum(sum);
}

template <class V>
void ExportRows(const RowBlock& rows, uint32_t head_dim, float* out, float* max, float* sum) {
  constexpr float kLn2 = 0.693147181F;
  for (uint32_t row = 0; row < rows.num_rows; ++row, out += head_dim) {
    const float* from = rows.out + size_t{row} * rows.out_channels;
    const float zero = SumOf<V>(rows.zero[row]);
    uint32_t c = 0;
    for (; c + V::kLanes <= head_dim; c += V::kLanes) {
      V::Store(out + c, V::Add(V::Load(from + c), V::Set(zero)));
    }
    for (; c < head_dim; ++c) {
      out[c] = from[c] + zero;
    }
    max[row] = rows.max[row] * kLn2;
    sum[row] = SumOf<V>(rows.sum[row]);
  }
}

}  // namespace
}  // namespace kvant::kernels
