#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/decode_params.h"

namespace kvant::kernels::cuda {

/// A compiled decode kernel and what it fixes.
struct DecodeVariant {
  uint32_t head_dim = 0;
  bool pair_pages = false;
  uint32_t value_bits = 0;
  uint32_t pair_unit_tiles = 0;  ///< tiles of one load of a pair page
  bool half_three_one = false;    ///< only for PN-Mix 3/1 at 50 %
  bool soft_cap = false;
  uint32_t warps = 0;
  uint32_t fixed_shared = 0;  ///< bytes before the rings
  uint32_t least_stage = 0;
  const void* kernel = nullptr;
  void (*launch)(const DecodeParams& params, uint32_t blocks, uint32_t shared_bytes, cudaStream_t stream) = nullptr;
};

/// One function a translation unit, so that they compile side by side.
DecodeVariant TokenVariant64();
DecodeVariant TokenVariant128();
DecodeVariant TokenVariant256();
DecodeVariant PairVariant64Value2();
DecodeVariant PairVariant64Value4();
DecodeVariant PairVariant128HalfThreeOneValue2();
DecodeVariant PairVariant128Value2();
DecodeVariant PairVariant128Value2Short();
DecodeVariant PairVariant128Value4();
DecodeVariant PairVariant256Value2();
DecodeVariant PairVariant256Value4();
DecodeVariant PairVariant64Value3();
DecodeVariant PairVariant128Value3();
DecodeVariant PairVariant256Value3();

// With a soft cap on the logits.
DecodeVariant TokenVariant64Cap();
DecodeVariant TokenVariant128Cap();
DecodeVariant TokenVariant256Cap();
DecodeVariant PairVariant64Value2Cap();
DecodeVariant PairVariant128Value2Cap();
DecodeVariant PairVariant128Value4Cap();
DecodeVariant PairVariant256Value2Cap();
DecodeVariant PairVariant256Value4Cap();

}  // namespace kvant::kernels::cuda
