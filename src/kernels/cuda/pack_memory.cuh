#pragma once

#include "kernels/cuda/group_code.cuh"
#include "kvant/kernels/cuda/pack.h"

namespace kvant::kernels::cuda {

/// A page's keys or values of one KV head on their way to codes. A warp owns 32 tokens: one block of the record.
inline constexpr uint32_t kPackTokens = kPairPageTokens;
inline constexpr int kPackWarps = 4;
inline constexpr int kPackThreads = 32 * kPackWarps;
static_assert(kPackTokens == 32 * kPackWarps);

template <int kHeadDim>
struct PackRows {
  static constexpr uint32_t kPitch = kHeadDim + 8;  // halves: a column's rows on different banks, 16-byte aligned
  __half x[kPackTokens][kPitch];
};

/// A warp asks for its own 32 rows; they are there after WaitForCopies<0> and a barrier of the warp.
template <int kHeadDim>
KVANT_DEVICE void LoadOwnRows(PackRows<kHeadDim>& rows, const __half* src, size_t row_stride) {
  constexpr uint32_t kVectors = kHeadDim / 8;
  const uint32_t first = threadIdx.x / 32 * 32;
#pragma unroll
  for (uint32_t i = threadIdx.x % 32; i < 32 * kVectors; i += 32) {
    const uint32_t token = first + i / kVectors;
    const uint32_t at = i % kVectors * 8;
    CopyAsync16(SharedAddress(&rows.x[token][at]), src + token * row_stride + at);
  }
  CommitCopies();
}

/// The same out of two fp16 tiles of the token tiers: `tile(i)` is where the keys or values of tile i (0, 1) lie.
template <bool kIsKey, int kHeadDim, class TileOf>
KVANT_DEVICE void LoadOwnTiles(PackRows<kHeadDim>& rows, TileOf tile) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t first = threadIdx.x / 32 * 32 + 16 * i;
    const auto* src = reinterpret_cast<const uint4*>(tile(i)) + lane;
#pragma unroll 4
    for (uint32_t step = 0; step < kHeadDim / 16; ++step) {
      const uint4 w = __ldg(src + step * 32);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {  // [upper + 2 · block]
        const uint32_t row = lane / 4 + 8 * (k % 2);
        const uint32_t column = lane % 4 * 2 + 8 * (k / 2);
        if constexpr (kIsKey) {
          *reinterpret_cast<uint32_t*>(&rows.x[first + row][16 * step + column]) = words[k];
        } else {
          rows.x[first + column][16 * step + row] = __ushort_as_half(static_cast<uint16_t>(words[k] & 0xFFFFU));
          rows.x[first + column + 1][16 * step + row] = __ushort_as_half(static_cast<uint16_t>(words[k] >> 16));
        }
      }
    }
  }
}

/// Least and most of the two halves of some words.
struct Range2 {
  __half2 low;
  __half2 high;

  KVANT_DEVICE void Add(__half2 x) {
    low = __hmin2(low, x);
    high = __hmax2(high, x);
  }
  static KVANT_DEVICE Range2 Of(__half2 x) { return {x, x}; }
};

}  // namespace kvant::kernels::cuda
