#pragma once

#include <cstdint>

namespace kvant::kernels {
namespace {

/// codec::RotateRow.
inline void RotateValues(uint32_t head_dim, float* row) {
  const uint32_t run = head_dim & (~head_dim + 1);
  for (uint32_t half = 1; half < run; half *= 2) {
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
