#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace kvant::kernels::cuda {

/// A compiled decode kernel and what it fixes.
struct DecodeVariant {
  uint32_t head_dim = 0;
  bool pair_pages = false;
  bool bf16_pages = false;
  uint32_t value_bits = 0;
  uint32_t value_groups = 1;
  uint32_t pair_unit_tiles = 0;  ///< tiles of one load of a pair page
  bool half_three_one = false;   ///< only for PN-Mix 3/1 at 50 %
  bool soft_cap = false;
  uint32_t warps = 0;
  uint32_t fixed_shared = 0;  ///< bytes before the rings
  uint32_t least_stage = 0;
  const void* kernel = nullptr;
  void (*launch)(const DecodeParams& params, uint32_t blocks, uint32_t shared_bytes, cudaStream_t stream) = nullptr;
};

}  // namespace kvant::kernels::cuda
