#include "cli/bench/gpu_bench.h"

namespace kvant::cli {
namespace {

Status NoCuda() {
  return {StatusCode::kNotFound, "this build has no CUDA kernels; configure with -DKVANT_CUDA=ON where nvcc is"};
}

}  // namespace

Status RunGpuAttention(const GpuAttention&, Console&) { return NoCuda(); }
Status RunGpuCodec(const GpuPages&, Console&) { return NoCuda(); }
Status RunGpuPack(const GpuPages&, Console&) { return NoCuda(); }

}  // namespace kvant::cli
