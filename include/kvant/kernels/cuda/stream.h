#pragma once

namespace kvant::kernels::cuda {

/// A cudaStream_t, without its header. Null is the default stream. Everything enqueued on a stream is capturable into
/// a CUDA graph; a failure of earlier work surfaces as the Status of a later call.
struct Stream {
  void* handle = nullptr;
};

}  // namespace kvant::kernels::cuda
