#pragma once

#include <cstdint>

namespace kvant::kernels {
namespace {

/// The first three steps of RotateValues on each eight channels: every element meets its partner in one register. The
/// sums and differences are those of the loop, bit for bit: a difference is the partner plus the negative.
inline void RotateEights(uint32_t head_dim, float* row) {
  using Eight [[gnu::vector_size(32)]] = float;
  constexpr Eight kOnes = {1, -1, 1, -1, 1, -1, 1, -1};
  constexpr Eight kTwos = {1, 1, -1, -1, 1, 1, -1, -1};
  constexpr Eight kFours = {1, 1, 1, 1, -1, -1, -1, -1};
  for (uint32_t c = 0; c < head_dim; c += 8) {
    Eight x;
    __builtin_memcpy(&x, row + c, sizeof x);
    x = x * kOnes + __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
    x = x * kTwos + __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
    x = x * kFours + __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
    __builtin_memcpy(row + c, &x, sizeof x);
  }
}

/// codec::RotateRow. Requires head_dim a multiple of 16
inline void RotateValues(uint32_t head_dim, float* row) {
  const uint32_t run = head_dim & (~head_dim + 1);
  RotateEights(head_dim, row);
  for (uint32_t half = 8; half < run; half *= 2) {
    for (uint32_t first = 0; first < head_dim; first += 2 * half) {
      for (uint32_t i = first; i < first + half; ++i) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
  const float norm = 1.0F / __builtin_sqrtf(static_cast<float>(run));
  for (uint32_t c = 0; c < head_dim; ++c) {
    row[c] *= norm;
  }
}

}  // namespace
}  // namespace kvant::kernels
