#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

/// The read every decode figure is compared with: the kernels' own data movement and nothing else.
namespace kvant::cuda_bench {

__device__ inline uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Warp-private rings filled by bulk copies, as in the decode kernels; the data is not looked at.
template <int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32, 1) BulkReadKernel(const std::byte* src, int num_chunks, int chunk) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kStages];
  const int warp = threadIdx.x / 32;
  const int worker = blockIdx.x * kWarps + warp;
  const int workers = gridDim.x * kWarps;
  const uint32_t barrier = SharedAddress(&barriers[warp * kStages]);
  std::byte* mine = ring + static_cast<size_t>(warp) * kStages * chunk;
  if (threadIdx.x % 32 != 0) return;
  for (int i = 0; i < kStages; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + 8 * i));
  }
  asm volatile("fence.mbarrier_init.release.cluster;");
  const int first = static_cast<int>(int64_t{num_chunks} * worker / workers);
  const int last = static_cast<int>(int64_t{num_chunks} * (worker + 1) / workers);
  auto issue = [&](int index, int stage) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier + 8 * stage), "r"(chunk)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     SharedAddress(mine + stage * chunk)),
                 "l"(src + static_cast<size_t>(index) * chunk), "r"(chunk), "r"(barrier + 8 * stage)
                 : "memory");
  };
  for (int i = 0; i < kStages && first + i < last; ++i) issue(first + i, i);
  int stage = 0;
  uint32_t parity = 0;
  for (int i = first; i < last; ++i) {
    asm volatile(
        "{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\n"
        "bra AGAIN;\nDONE:\n}" ::"r"(barrier + 8 * stage),
        "r"(parity)
        : "memory");
    if (i + kStages < last) issue(i + kStages, stage);
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1U;
    }
  }
#endif
}

}  // namespace kvant::cuda_bench
