#include "kvant/kernels/cuda/pack.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/pack_keys.cuh"
#include "kernels/cuda/pack_values.cuh"
#include "kernels/cuda/status.h"

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
  if (blockIdx.z == 0) {
    PackKeys<kHeadDim, kAllCells>(Shared<PackKeyMemory<kHeadDim>>(0), pack, map,
                                  static_cast<const __half*>(pack.keys) + first, row_stride, record);
  } else {
    PackValues<kHeadDim, kValueBits, kAllCells>(Shared<PackValueMemory<kHeadDim>>(0), pack, map,
                                                static_cast<const __half*>(pack.values) + first, row_stride, record);
  }
}

template <int kHeadDim, int kValueBits, bool kAllCells>
Status Launch(const PairPack& pack, cudaStream_t stream) {
  auto* kernel = PackPairKernel<kHeadDim, kValueBits, kAllCells>;
  const auto shared = static_cast<int>(std::max<size_t>(sizeof(PackKeyMemory<kHeadDim>),
                                                        PackValueMemory<kHeadDim>::Bytes(pack.format.ValueGroups())));
  KVANT_RETURN_IF_ERROR(
      StatusOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "pack pair pages"));
  kernel<<<dim3(pack.num_jobs, pack.num_kv_heads, 2), kPackThreads, static_cast<size_t>(shared), stream>>>(pack);
  return StatusOf(cudaGetLastError(), "pack pair pages");
}

template <int kHeadDim, bool kAllCells>
Status LaunchForValues(const PairPack& pack, cudaStream_t stream) {
  switch (pack.format.value_bits) {
    case 2: return Launch<kHeadDim, 2, kAllCells>(pack, stream);
    case 3: return Launch<kHeadDim, 3, kAllCells>(pack, stream);
    default: return Launch<kHeadDim, 4, kAllCells>(pack, stream);
  }
}

template <int kHeadDim>
Status LaunchFor(const PairPack& pack, cudaStream_t stream) {
  const bool cells =
      pack.format.key_rule == codec::PairRule::kMidRise && pack.format.value_rule == codec::PairRule::kMidRise;
  return cells ? LaunchForValues<kHeadDim, true>(pack, stream) : LaunchForValues<kHeadDim, false>(pack, stream);
}

Status CheckPack(const PairPack& pack) {
  const codec::PairFormat& format = pack.format;
  if (format.head_dim != 64 && format.head_dim != 128 && format.head_dim != 256) {
    return {StatusCode::kModelUnsupported,
            "the CUDA kernels have head dimensions 64, 128 and 256, not " + std::to_string(format.head_dim)};
  }
  if (format.page_tokens != kPairPageTokens) {
    return {StatusCode::kInvalidArgument, "the CUDA packer has pages of 128 tokens"};
  }
  if (format.value_group < 16 || format.value_group % 16 != 0 || format.head_dim % format.value_group != 0) {
    return {StatusCode::kInvalidArgument,
            "value group: " + std::to_string(format.value_group) + " is no multiple of 16 that divides the head"};
  }
  if (format.value_bits < 2 || format.value_bits > 4) {
    return {StatusCode::kInvalidArgument, "value bits: " + std::to_string(format.value_bits) + " is not supported"};
  }
  return OkStatus();
}

}  // namespace

Status PackPairPages(const PairPack& pack, Stream stream) {
  KVANT_RETURN_IF_ERROR(CheckPack(pack));
  if (pack.num_jobs == 0) {
    return OkStatus();
  }
  switch (pack.format.head_dim) {
    case 64: return LaunchFor<64>(pack, AsStream(stream));
    case 128: return LaunchFor<128>(pack, AsStream(stream));
    default: return LaunchFor<256>(pack, AsStream(stream));
  }
}

}  // namespace kvant::kernels::cuda
