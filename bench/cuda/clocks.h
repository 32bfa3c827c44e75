#pragma once

#include "kvant/kernels/cuda/measure.h"

namespace kvant::cuda_bench {

/// Name and clocks of the GPU, read while it is warm from what was just timed.
/// Errors  as DeviceError
void ReadDevice(kernels::cuda::Measured* measured);

}  // namespace kvant::cuda_bench
