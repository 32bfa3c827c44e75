#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/ptx.cuh"
#include "kvant/quant/group.h"

/// quant::FitGroup, FitMidRise and their encoders, operation for operation: no contraction, IEEE division, so that codes
/// are those of the scalar reference.
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
  group.zero = __float2half_rn(low);
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

KVANT_DEVICE uint32_t EncodeSymmetric(int bits, const DeviceGroup& group, float x) {
  const float most = static_cast<float>(quant::SymmetricMax(bits));
  const float level = fminf(fmaxf(rintf(__fmul_rn(x, group.inverse)), -most), most);
  return static_cast<uint32_t>(static_cast<int>(level) + quant::SymmetricBias(bits));
}
KVANT_DEVICE uint32_t EncodeAffine(int bits, const DeviceGroup& group, float x) {
  const float level = rintf(__fmul_rn(__fsub_rn(x, group.zero_value), group.inverse));
  return static_cast<uint32_t>(fminf(fmaxf(level, 0.0F), static_cast<float>(quant::AffineMax(bits))));
}

}  // namespace kvant::kernels::cuda
