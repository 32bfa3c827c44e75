#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/base/half.h"
#include "kvant/kernels/cpu.h"

namespace kvant::kernels {

/// The passes over keys behind codec::EqualizationBuilder and codec::EqualizeRow, for `num_keys` dense rows at once:
/// the same values, bit for bit. Shapes  keys [num_keys, head_dim]; mean, scale, sums, ranges [head_dim].
struct EqualizeKernels {
  /// sums += each key, in double.
  void (*add_sums)(uint32_t head_dim, const Half* keys, size_t num_keys, double* sums);
  /// ranges = max(ranges, |key - mean|).
  void (*add_ranges)(uint32_t head_dim, const Half* mean, const Half* keys, size_t num_keys, float* ranges);
  /// keys = (key - mean) / scale, in place.
  void (*equalize)(uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys);
};

const EqualizeKernels& EqualizeKernelsOf(Isa isa);

}  // namespace kvant::kernels
