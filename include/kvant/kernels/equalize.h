#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/base/half.h"
#include "kvant/kernels/cpu.h"

namespace kvant::kernels {

/// codec::AddKey and codec::EqualizeRow for `num_keys` dense rows at once: the same values, bit for bit.
/// Shapes  keys [num_keys, head_dim]; mean, scale and the stats [head_dim].
struct EqualizeKernels {
  void (*add_keys)(uint32_t head_dim, const Half* keys, size_t num_keys, double* sums, float* lows, float* highs);
  /// keys = (key - mean) / scale, in place.
  void (*equalize)(uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys);
};

const EqualizeKernels& EqualizeKernelsOf(Isa isa);

}  // namespace kvant::kernels
