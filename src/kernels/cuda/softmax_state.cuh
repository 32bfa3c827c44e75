#pragma once

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/ptx.cuh"

namespace kvant::kernels::cuda {

/// Lane l of a warp: `row` = l / 4 and `quad` = l % 4, as in the operand tables of m16n8k16. Sums over tokens or
/// channels are 16 × 8 tiles: rows row, row + 8; columns (query heads) 2·quad, 2·quad + 1.
struct Lane {
  uint32_t id;
  uint32_t row;
  uint32_t quad;
};
KVANT_DEVICE Lane ThisLane() {
  const uint32_t id = threadIdx.x % 32;
  return {id, id / 4, id % 4};
}

/// The row whose lanes sum up what value group g adds: row 1 is taken.
KVANT_DEVICE constexpr uint32_t SumRow(int group) { return group == 0 ? 0 : static_cast<uint32_t>(group) + 1; }

/// Running softmax of 8 query heads over the tokens a warp has seen.
template <int kHeadDim>
struct SoftmaxState {
  static constexpr int kSteps = kHeadDim / 16;
  float acc[kSteps][4];  ///< Σ p·v: channels (16·i + row, + 8) × heads, in the units of the run's format
  float sums[2];       ///< lanes of row 1: Σ p; of SumRow(g): Σ p·(what is added to every channel of value group g)
  float reference[2];  ///< p = 2^(logit - reference); the largest logit when it was last looked for

  KVANT_DEVICE void Reset() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      for (int j = 0; j < 4; ++j) acc[i][j] = 0.0F;
    }
    sums[0] = sums[1] = 0.0F;
    reference[0] = reference[1] = -1e30F;
  }

  /// Nothing seen yet.
  KVANT_DEVICE bool Fresh() const { return reference[0] == -1e30F; }

  /// Move to a larger reference.
  KVANT_DEVICE void Raise(float new0, float new1) {
    const float f0 = Exp2(reference[0] - new0);
    const float f1 = Exp2(reference[1] - new1);
    reference[0] = new0;
    reference[1] = new1;
    sums[0] *= f0;
    sums[1] *= f1;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      acc[i][0] *= f0;
      acc[i][1] *= f1;
      acc[i][2] *= f0;
      acc[i][3] *= f1;
    }
  }

  /// Σ p of heads 2·quad and 2·quad + 1, in every lane.
  KVANT_DEVICE float2 Sum(Lane lane) const {
    return {__shfl_sync(~0U, sums[0], 4 + lane.quad), __shfl_sync(~0U, sums[1], 4 + lane.quad)};
  }

  /// Orthonormal Hadamard transform over the channels, its own inverse: registers hold (i, upper), lanes the row.
  KVANT_DEVICE void Hadamard() {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const float a = acc[i][j];
        const float b = acc[i][j + 2];
        acc[i][j] = a + b;
        acc[i][j + 2] = a - b;
      }
    }
#pragma unroll
    for (int distance = 1; distance < kSteps; distance *= 2) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if ((i & distance) != 0) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float a = acc[i][j];
          const float b = acc[i + distance][j];
          acc[i][j] = a + b;
          acc[i + distance][j] = a - b;
        }
      }
    }
    constexpr float kNorm = kHeadDim == 64 ? 0.125F : kHeadDim == 256 ? 0.0625F : 0.08838834764831845F;
#pragma unroll
    for (int distance = 4; distance <= 16; distance *= 2) {
      const bool minus = (threadIdx.x & distance) != 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float other = __shfl_xor_sync(~0U, acc[i][j], distance);
          acc[i][j] = minus ? other - acc[i][j] : acc[i][j] + other;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      for (int j = 0; j < 4; ++j) acc[i][j] *= kNorm;
    }
  }
};

/// The queries of one run as the 8-column operand, and what of the logits does not depend on the token.
template <int kHeadDim>
struct QueryFragments {
  uint32_t q[kHeadDim / 16][2];  ///< q · softmax scale · log2(e) (· key scale of the map), fp16
  float offset[2];               ///< added to every logit: q·mean
  float total[2];                ///< Σ q: what one unit of a key's zero point is worth
};

}  // namespace kvant::kernels::cuda
