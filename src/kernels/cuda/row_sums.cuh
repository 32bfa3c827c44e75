#pragma once

#include "kernels/cuda/score_tile.cuh"

namespace kvant::kernels::cuda {

inline constexpr float kNoLogit = -1e30F;

/// Softmax sums of a lane's four rows over the columns it holds, relative to the largest logit met.
struct RowSums {
  float reference[2][2];
  float sum[2][2];

  KVANT_DEVICE RowSums() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      reference[i / 2][i % 2] = kNoLogit;
      sum[i / 2][i % 2] = 0.0F;
    }
  }

  /// Logits that nobody sees are kNoLogit, where there are any.
  template <bool kMasked>
  KVANT_DEVICE void Add(const ScoreTiles& logits) {
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const int operand = row / 2;
      const int upper = row % 2;
      float most = reference[operand][upper];
#pragma unroll
      for (const auto& tile : logits[operand]) most = fmaxf(most, fmaxf(tile[2 * upper], tile[2 * upper + 1]));
      float sums[2] = {sum[operand][upper] * Exp2(reference[operand][upper] - most), 0.0F};
#pragma unroll
      for (const auto& tile : logits[operand]) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = tile[2 * upper + j];
          sums[j] += kMasked && x == kNoLogit ? 0.0F : Exp2(x - most);
        }
      }
      reference[operand][upper] = most;
      sum[operand][upper] = sums[0] + sums[1];
    }
  }

  /// (reference, sum) of one row over the four lanes that share it.
  KVANT_DEVICE float2 Total(int operand, int upper) const {
    float2 total = make_float2(reference[operand][upper], sum[operand][upper]);
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
      total =
          Merged(total, make_float2(__shfl_xor_sync(~0U, total.x, distance), __shfl_xor_sync(~0U, total.y, distance)));
    }
    return total;
  }

  static KVANT_DEVICE float2 Merged(float2 a, float2 b) {
    const float most = fmaxf(a.x, b.x);
    return make_float2(most, a.y * Exp2(a.x - most) + b.y * Exp2(b.x - most));
  }
};

}  // namespace kvant::kernels::cuda
