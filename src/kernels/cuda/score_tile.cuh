#pragma once

#include "kernels/cuda/ptx.cuh"

/// Products of a warp's 32 rows, kept in registers, with 64 rows that pass through shared memory. Which of them are
/// queries and which keys is the caller's: sums over the passing rows need no exchange until the end.
namespace kvant::kernels::cuda {

inline constexpr uint32_t kScoreWarps = 4;
inline constexpr uint32_t kScoreThreads = 32 * kScoreWarps;
inline constexpr uint32_t kWarpRows = 32;  ///< two operands: a column is read from shared memory once for both
inline constexpr uint32_t kScoreRows = kWarpRows * kScoreWarps;
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
  uint32_t a[2][kHeadDim / 16][4];

  KVANT_DEVICE RowFragments(const HeadRows& rows, uint32_t first) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {  // eight rows each
      const uint32_t row = first + lane / 4 + 8 * i;
      const __half* x = rows.base + row * rows.stride + lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          a[i / 2][step][i % 2 + 2 * block] =
              row < rows.count ? __ldg(reinterpret_cast<const uint32_t*>(x + 16 * step + 8 * block)) : 0;
        }
      }
    }
  }
};

/// Of a warp: [operand][eight columns][m16n8 result]. RowOf says which row a lane's element is of.
using ScoreTiles = float[2][kScoreTiles][4];
KVANT_DEVICE uint32_t RowOf(uint32_t operand, uint32_t j) { return operand * 16 + j / 2 * 8 + threadIdx.x % 32 / 4; }
KVANT_DEVICE uint32_t ColumnOf(uint32_t tile, uint32_t j) { return tile * 8 + threadIdx.x % 4 * 2 + j % 2; }

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

  /// The warp's rows × all columns.
  KVANT_DEVICE void Scores(const RowFragments<kHeadDim>& rows, ScoreTiles& s) const {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (auto& of_operand : s) {
      for (auto& tile : of_operand) tile[0] = tile[1] = tile[2] = tile[3] = 0.0F;
    }
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
      for (int t = 0; t < kScoreTiles; t += 2) {
        const uint32_t row = 8 * t + lane % 8 + lane / 16 * 8;
        const uint4 b = LoadMatrices(SharedAddress(&x[row][16 * step + lane / 8 % 2 * 8]));
#pragma unroll
        for (int operand = 0; operand < 2; ++operand) {
          const auto& a = rows.a[operand][step];
          Mma(s[operand][t], a[0], a[1], a[2], a[3], b.x, b.y);
          Mma(s[operand][t + 1], a[0], a[1], a[2], a[3], b.z, b.w);
        }
      }
    }
  }
};

}  // namespace kvant::kernels::cuda
