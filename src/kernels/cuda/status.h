#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kvant/base/status.h"
#include "kvant/kernels/cuda/stream.h"

namespace kvant::kernels::cuda {

inline cudaStream_t AsStream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// The driver's answer, with what was asked of it.
inline Status StatusOf(cudaError_t error, const char* what) {
  if (error == cudaSuccess) {
    return OkStatus();
  }
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kInternal;
  return {code, std::string(what) + ": " + cudaGetErrorString(error)};
}

}  // namespace kvant::kernels::cuda
