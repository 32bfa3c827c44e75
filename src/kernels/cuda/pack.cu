#include <cuda_runtime.h>

#include "kernels/cuda/pack_launch.cuh"
#include "kvant/kernels/cuda/pack.h"

namespace kvant::kernels::cuda {
namespace {

/// One block packs the keys (z = 0) or the values (z = 1) of a page and KV head.
template <int kHeadDim, int kValueBits, bool kAllCells>
__global__ void __launch_bounds__(kPackThreads, kHeadDim == 128 ? 5 : 2) PackPairKernel(const PairPack pack) {
  const PairPackJob job = pack.jobs[blockIdx.x];
  const uint32_t head = blockIdx.y;
  const PairDeviceMap* map = pack.maps + job.map * pack.num_kv_heads + head;
  const size_t row_stride = size_t{pack.num_kv_heads} * kHeadDim;
  const size_t first = job.first_row * row_stride + size_t{head} * kHeadDim;
  std::byte* record = static_cast<std::byte*>(pack.pool) + job.page * pack.page_bytes + head * pack.record_bytes;
  const auto load_from = [&](const void* base) {
    return [=](PackRows<kHeadDim>& rows) { LoadOwnRows(rows, static_cast<const __half*>(base) + first, row_stride); };
  };
  if (blockIdx.z == 0) {
    PackKeys<kHeadDim, kAllCells>(pack.format, map, record, load_from(pack.keys));
  } else {
    PackValues<kHeadDim, kValueBits, kAllCells>(pack.format, map, record, load_from(pack.values));
  }
}

}  // namespace

Status PackPairPages(const PairPack& pack, Stream stream) {
  return LaunchPack(pack.format, dim3(pack.num_jobs, pack.num_kv_heads, 2), pack, stream,
                    [](auto d, auto bits, auto cells) { return PackPairKernel<d(), bits(), cells()>; });
}

}  // namespace kvant::kernels::cuda
