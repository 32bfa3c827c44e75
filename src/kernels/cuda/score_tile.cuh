#pragma once

#include "kernels/cuda/ptx.cuh"

/// Products of a warp's 16 rows, kept in registers, with 64 rows that pass through shared memory. Which of them are
/// queries and which keys is the caller's: sums over the passing rows need no exchange until the end.
namespace kvant::kernels::cuda {

inline constexpr uint32_t kScoreWarps = 8;
inline constexpr uint32_t kScoreThreads = 32 * kScoreWarps;
inline constexpr uint32_t kScoreRows = 16 * kScoreWarps;
inline constexpr uint32_t kScoreColumns = 64;
inline constexpr int kScoreTiles = kScoreColumns / 8;

/// Rows of one head among those of several: row i begins at base + i · stride.
struct HeadRows {
  const __half* base;
  size_t stride;
  uint32_t count;
};

/// The warp's rows as operand, zeros beyond the last.
template <int kHeadDim>
struct RowFragments {
  uint32_t a[kHeadDim / 16][4];

  KVANT_DEVICE RowFragments(const HeadRows& rows, uint32_t first) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper) {
      const uint32_t row = first + lane / 4 + 8 * upper;
      const __half* x = rows.base + row * rows.stride + lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          a[step][upper + 2 * block] =
              row < rows.count ? __ldg(reinterpret_cast<const uint32_t*>(x + 16 * step + 8 * block)) : 0;
        }
      }
    }
  }
};

template <int kHeadDim>
struct ColumnTile {
  __half x[kScoreColumns][kHeadDim + 8];

  /// The block asks for rows first…first + 63; those beyond the last become zeros.
  KVANT_DEVICE void Load(const HeadRows& rows, uint32_t first) {
    constexpr uint32_t kVectors = kHeadDim / 8;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < kScoreColumns * kVectors; i += kScoreThreads) {
      const uint32_t row = i / kVectors;
      __half* dst = &x[row][i % kVectors * 8];
      if (first + row < rows.count) {
        CopyAsync16(SharedAddress(dst), rows.base + (first + row) * rows.stride + i % kVectors * 8);
      } else {
        *reinterpret_cast<uint4*>(dst) = make_uint4(0, 0, 0, 0);
      }
    }
  }

  /// s[t]: the warp's rows × columns 8·t…8·t + 7, as m16n8 results.
  KVANT_DEVICE void Scores(const RowFragments<kHeadDim>& rows, float (&s)[kScoreTiles][4]) const {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (auto& tile : s) tile[0] = tile[1] = tile[2] = tile[3] = 0.0F;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
      for (int t = 0; t < kScoreTiles; t += 2) {
        const uint32_t row = 8 * t + lane % 8 + lane / 16 * 8;
        const uint4 b = LoadMatrices(SharedAddress(&x[row][16 * step + lane / 8 % 2 * 8]));
        const auto& a = rows.a[step];
        Mma(s[t], a[0], a[1], a[2], a[3], b.x, b.y);
        Mma(s[t + 1], a[0], a[1], a[2], a[3], b.z, b.w);
      }
    }
  }
};

}  // namespace kvant::kernels::cuda
