#pragma once

#include "kernels/cuda/softmax_state.cuh"

namespace kvant::kernels::cuda {

/// Tokens in a code of the token tiers. Codes enter the tensor cores as subnormal fp16 numbers: bits masked in place,
/// so a code c at bit b is c · 2^(b - 24). What the position multiplies by is undone once a run (values) or in q
/// (keys).
template <codec::TokenCodec kCodec_, int kHeadDim, bool kIsBf16_ = false>
struct TokenTiles {
  static constexpr codec::TokenCodec kCodec = kCodec_;
  static constexpr bool kIsBf16 = kIsBf16_;  ///< 16 bits that are bf16, not fp16
  static constexpr int kValueGroups = 1;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kIsHalf = kCodec == codec::TokenCodec::kFp16;
  static constexpr bool kHasZero = codec::HasZero(kCodec);
  static constexpr bool kHasKeyZero = kHasZero;  ///< a key zero a token
  static constexpr bool kZerosFollow = false;
  static constexpr int kUnitTiles = kIsHalf ? 1 : kCodec == codec::TokenCodec::kInt8 ? 2 : 4;
  static constexpr int kMaskedTiles = 1;
  static constexpr uint32_t kTileBytes = TokenTileBytes(kCodec, kHeadDim);
  static constexpr uint32_t kCodeBytes = TokenTileCodeBytes(kCodec, kHeadDim);
  static constexpr float kBias = kIsHalf || kHasZero ? 0.0F : kCodec == codec::TokenCodec::kInt8 ? 128.0F : 8.0F;
  static constexpr float kCodeUnit = kIsHalf ? 1.0F : 16777216.0F;  // 2^24
  static constexpr bool kScalesValues = !kIsHalf;
  /// What a sum of p · (value zero) counts: the stored zero, or minus the bias times the scale.
  static constexpr float kZeroUnit = kHasZero ? 1.0F : -kBias;

  uint32_t tiles;  ///< offset in shared memory

  /// Numbers of 16 bits as fp16.
  static KVANT_DEVICE uint4 Operand(uint4 w) {
    if constexpr (!kIsBf16) return w;
    return make_uint4(HalvesOfBf16(w.x), HalvesOfBf16(w.y), HalvesOfBf16(w.z), HalvesOfBf16(w.w));
  }
  static KVANT_DEVICE uint32_t HalvesOfBf16(uint32_t w) {
    return PackHalf2(__uint_as_float(w << 16), __uint_as_float(w & 0xFFFF0000U));
  }

  KVANT_DEVICE uint32_t Scales(int t, int row_of_scales) const {
    return tiles + t * kTileBytes + 2 * kCodeBytes + row_of_scales * 32;
  }

  // Steps outside, tiles inside, so that neighbouring products do not wait for each other; a lone tile has two sums.
  template <int kTiles>
  KVANT_DEVICE void Scores(float (&s)[kTiles][4], const QueryFragments<kHeadDim>& query, Lane lane) const {
    constexpr int kSums = kTiles == 1 ? 2 : 1;
    float sum[kTiles][kSums][4] = {};
#pragma unroll
    for (int t = 0; t < kTiles && kBias != 0.0F; ++t) {
      sum[t][0][0] = sum[t][0][2] = -kBias * query.total[0] / kCodeUnit;
      sum[t][0][1] = sum[t][0][3] = -kBias * query.total[1] / kCodeUnit;
    }
    constexpr int kStepsALoad = 16 / codec::CodeBits(kCodec);
#pragma unroll
    for (int i = 0; i < kSteps; i += kStepsALoad) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 w = Load16(tiles + t * kTileBytes + lane.id * 16 + i / kStepsALoad * 512);
        if constexpr (kIsHalf) {
          const uint4 a = Operand(w);
          Mma(sum[t][i % kSums], a.x, a.y, a.z, a.w, query.q[i][0], query.q[i][1]);
        } else if constexpr (kCodec == codec::TokenCodec::kInt8) {
          Mma(sum[t][0], EvenBytes(w.x), EvenBytes(w.y), OddBytes(w.x), OddBytes(w.y), query.q[i][0], query.q[i][1]);
          Mma(sum[t][kSums - 1], EvenBytes(w.z), EvenBytes(w.w), OddBytes(w.z), OddBytes(w.w), query.q[i + 1][0],
              query.q[i + 1][1]);
        } else {
          Nibbles(sum[t][0], w.x, w.y, query.q[i], query.q[i + 1]);
          Nibbles(sum[t][kSums - 1], w.z, w.w, query.q[i + 2], query.q[i + 3]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      for (int j = 0; j < 4; ++j) s[t][j] = kSums == 2 ? sum[t][0][j] + sum[t][kSums - 1][j] : sum[t][0][j];
    }
  }

  /// Two steps of four-bit keys; the second lies 4 bits up, so its q is taken at 1/16.
  static KVANT_DEVICE void Nibbles(float (&s)[4], uint32_t w0, uint32_t w1, const uint32_t (&q0)[2],
                                   const uint32_t (&q1)[2]) {
    const __half2 sixteenth = __float2half2_rn(0.0625F);
    const uint32_t x0 = w0 >> 8;
    const uint32_t x1 = w1 >> 8;
    Mma(s, w0 & 0x000F000FU, w1 & 0x000F000FU, x0 & 0x000F000FU, x1 & 0x000F000FU, q0[0], q0[1]);
    Mma(s, w0 & 0x00F000F0U, w1 & 0x00F000F0U, x0 & 0x00F000F0U, x1 & 0x00F000F0U,
        Bits(__hmul2(AsHalf2(q1[0]), sixteenth)), Bits(__hmul2(AsHalf2(q1[1]), sixteenth)));
  }

  /// logit = s · factor + addend, per token row.
  KVANT_DEVICE float Factor(int t, uint32_t token) const {
    return kIsHalf ? 1.0F : LoadHalf(Scales(t, 0) + 2 * token) * kCodeUnit;
  }
  KVANT_DEVICE float KeyZero(int t, uint32_t token) const {
    return kHasZero ? LoadHalf(Scales(t, 2) + 2 * token) : 0.0F;
  }

  KVANT_DEVICE uint32_t ValueScales(int t, int) const { return Scales(t, 1); }
  KVANT_DEVICE uint32_t ValueZeros(int t, int) const { return kHasZero ? Scales(t, 3) : Scales(t, 1); }

  template <int kTiles>
  KVANT_DEVICE void Values(float (&acc)[kSteps][4], const uint32_t (&p)[kTiles][1][2], Lane lane) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint32_t values = tiles + t * kTileBytes + kCodeBytes + lane.id * 16;
      if constexpr (kIsHalf) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const uint4 a = Operand(Load16(values + i * 512));
          Mma(acc[i], a.x, a.y, a.z, a.w, p[t][0][0], p[t][0][1]);
        }
      } else if constexpr (kCodec == codec::TokenCodec::kInt8) {
#pragma unroll
        for (int i = 0; i < kSteps; i += 2) {
          const uint4 w = Load16(values + i / 2 * 512);
          Mma(acc[i], EvenBytes(w.x), EvenBytes(w.y), OddBytes(w.x), OddBytes(w.y), p[t][0][0], p[t][0][1]);
          Mma(acc[i + 1], EvenBytes(w.z), EvenBytes(w.w), OddBytes(w.z), OddBytes(w.w), p[t][0][0], p[t][0][1]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kSteps; i += 4) {
          const uint4 w = Load16(values + i / 4 * 512);
          ValueNibbles(acc[i], acc[i + 1], w.x, w.y, p[t][0]);
          ValueNibbles(acc[i + 2], acc[i + 3], w.z, w.w, p[t][0]);
        }
      }
    }
  }

  static KVANT_DEVICE void ValueNibbles(float (&even)[4], float (&odd)[4], uint32_t w0, uint32_t w1,
                                        const uint32_t (&p)[2]) {
    const uint32_t x0 = w0 >> 8;
    const uint32_t x1 = w1 >> 8;
    Mma(even, w0 & 0x000F000FU, w1 & 0x000F000FU, x0 & 0x000F000FU, x1 & 0x000F000FU, p[0], p[1]);
    Mma(odd, w0 & 0x00F000F0U, w1 & 0x00F000F0U, x0 & 0x00F000F0U, x1 & 0x00F000F0U, p[0], p[1]);
  }

  /// acc[step] · AccUnit(step) = Σ p·v.
  static KVANT_DEVICE constexpr float AccUnit(int step) {
    return codec::CodeBits(kCodec) == 4 && step % 2 == 1 ? kCodeUnit / 16.0F : kCodeUnit;
  }
};

}  // namespace kvant::kernels::cuda
