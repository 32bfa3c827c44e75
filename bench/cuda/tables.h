#pragma once

#include "kvant/kernels/cuda/measure.h"

/// How the bench programs print what was measured.
namespace kvant::cuda_bench {

/// Ends the program where nothing could be measured: 77 without a GPU, else 1.
kernels::cuda::Measured MustMeasure(Result<kernels::cuda::Measured> measured);

/// Seconds and bytes of the arm of that name, which must be there.
double MedianOf(const kernels::cuda::Measured& measured, const std::string& name);
double BytesOf(const kernels::cuda::Measured& measured, const std::string& name);

void PrintAttention(const kernels::cuda::Measured& measured);
void PrintPages(const kernels::cuda::Measured& measured);

}  // namespace kvant::cuda_bench
