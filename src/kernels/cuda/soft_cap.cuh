#pragma once

#include "kernels/cuda/ptx.cuh"

namespace kvant::kernels::cuda {

/// Soft cap in log2 units: cap · tanh(x / cap), to fp32 accuracy (tanh.approx has 11 bits, too few for a logit).
KVANT_DEVICE float CapLogit(float x, float cap) {
  const float e = Exp2(x / cap * 2.8853900817779268F);
  return cap - 2.0F * cap / (e + 1.0F);
}

}  // namespace kvant::kernels::cuda
