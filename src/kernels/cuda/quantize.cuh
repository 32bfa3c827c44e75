#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "kvant/codec/token_codec.h"
#include "kvant/quant/group.h"

/// quant::FitGroup, FitMidRise and their encoders, operation for operation: no contraction, IEEE division, so that
/// codes are those of the scalar reference.
namespace kvant::kernels::cuda {

struct DeviceGroup {
  __half scale;
  __half zero;
  float inverse;
  float zero_value;

  KVANT_DEVICE void Finish() {
    const float s = __half2float(scale);
    inverse = s == 0.0F ? 0.0F : __fdiv_rn(1.0F, s);
    zero_value = __half2float(zero);
  }
};

KVANT_DEVICE DeviceGroup FitSymmetric(int bits, float low, float high) {
  DeviceGroup group;
  const float largest = fmaxf(fabsf(low), fabsf(high));
  group.scale = __float2half_rn(__fdiv_rn(largest, static_cast<float>(quant::SymmetricMax(bits))));
  group.zero = __ushort_as_half(0);
  group.Finish();
  return group;
}

KVANT_DEVICE DeviceGroup FitAffine(int bits, float low, float high) {
  DeviceGroup group;
  group.zero = __float2half_rn(__fadd_rn(low, 0.0F));  // never -0
  const float range = fmaxf(__fsub_rn(high, __half2float(group.zero)), 0.0F);
  group.scale = __float2half_rn(__fdiv_rn(range, static_cast<float>(quant::AffineMax(bits))));
  group.Finish();
  return group;
}

KVANT_DEVICE DeviceGroup FitMidRise(int bits, float low, float high) {
  DeviceGroup group;
  group.scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), static_cast<float>(1 << bits)));
  group.zero = __float2half_rn(__fadd_rn(low, __fmul_rn(0.5F, __half2float(group.scale))));
  group.Finish();
  return group;
}

/// What turns a number of a row into its code, in the low 16 bits: one addition rounds and leaves it there.
template <codec::TokenCodec kCodec>
struct RowCode {
  float inverse;
  float zero;

  KVANT_DEVICE uint32_t Encode(float x) const {
    if constexpr (codec::HasZero(kCodec)) {
      constexpr float kMost = static_cast<float>(quant::AffineMax(codec::CodeBits(kCodec)));
      const float level = __fmul_rn(__fsub_rn(x, zero), inverse);
      return __float_as_uint(__fadd_rn(fminf(fmaxf(level, 0.0F), kMost), 8388608.0F));  // 2^23
    } else {
      constexpr int kBits = codec::CodeBits(kCodec);
      constexpr float kMost = static_cast<float>(quant::SymmetricMax(kBits));
      const float level = __fmul_rn(x, inverse);
      // The bias is even, so ties fall as they do without it.
      return __float_as_uint(
          __fadd_rn(fminf(fmaxf(level, -kMost), kMost), 12582912.0F + static_cast<float>(quant::SymmetricBias(kBits))));
    }
  }
};

}  // namespace kvant::kernels::cuda
