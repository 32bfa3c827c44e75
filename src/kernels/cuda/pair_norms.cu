#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/importance.h"

namespace kvant::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kRowsASlice = 512;
constexpr uint32_t kMostSlices = 256;

uint32_t Slices(size_t num_rows) {
  return static_cast<uint32_t>(std::clamp<size_t>((num_rows + kRowsASlice - 1) / kRowsASlice, 1, kMostSlices));
}

KVANT_DEVICE float Norm(float a, float b) { return __fsqrt_rn(fmaf(a, a, b * b)); }

/// Norms of the eight pairs that two loads of eight channels hold.
template <codec::PairLayout kPairs>
KVANT_DEVICE void AddNorms(uint4 first, uint4 second, float (&sums)[8]) {
  const uint32_t a[4] = {first.x, first.y, first.z, first.w};
  const uint32_t b[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = __half22float2(AsHalf2(a[i]));
    const float2 y = __half22float2(AsHalf2(b[i]));
    if constexpr (kPairs == codec::PairLayout::kHalfSplit) {
      sums[2 * i] += Norm(x.x, y.x);
      sums[2 * i + 1] += Norm(x.y, y.y);
    } else {
      sums[i] += Norm(x.x, x.y);
      sums[4 + i] += Norm(y.x, y.y);
    }
  }
}

/// Pair of sum k of a lane whose first load is chunk `chunk` and whose second lies half a head behind.
template <codec::PairLayout kPairs, int kHeadDim>
KVANT_DEVICE uint32_t PairOf(uint32_t chunk, uint32_t k) {
  if constexpr (kPairs == codec::PairLayout::kHalfSplit) return chunk * 8 + k;
  return k < 4 ? chunk * 4 + k : kHeadDim / 4 + chunk * 4 + k - 4;
}

/// Sums of one slice of the rows of one head: partial[slice][head][pair].
template <codec::PairLayout kPairs, int kHeadDim>
__global__ void __launch_bounds__(kThreads) SliceKernel(const PairNorms norms, float* partial) {
  constexpr uint32_t kLanes = kHeadDim / 16;
  constexpr uint32_t kRows = kThreads / kLanes;
  __shared__ float memory[kRows][kHeadDim / 2 + 1];
  const uint32_t chunk = threadIdx.x % kLanes;
  const uint32_t slot = threadIdx.x / kLanes;
  const uint32_t head = blockIdx.y;
  const size_t first = norms.num_rows * blockIdx.x / gridDim.x;
  const size_t end = norms.num_rows * (blockIdx.x + 1) / gridDim.x;
  float sums[8] = {};
#pragma unroll 2
  for (size_t row = first + slot; row < end; row += kRows) {
    const auto* x = reinterpret_cast<const uint4*>(static_cast<const __half*>(norms.rows) +
                                                   (row * norms.num_heads + head) * kHeadDim);
    AddNorms<kPairs>(__ldcs(x + chunk), __ldcs(x + kLanes + chunk), sums);
  }
#pragma unroll
  for (uint32_t k = 0; k < 8; ++k) memory[slot][PairOf<kPairs, kHeadDim>(chunk, k)] = sums[k];
  __syncthreads();
  if (threadIdx.x >= kHeadDim / 2) return;
  float sum = 0.0F;
  for (uint32_t r = 0; r < kRows; ++r) sum += memory[r][threadIdx.x];
  partial[(size_t{blockIdx.x} * norms.num_heads + head) * (kHeadDim / 2) + threadIdx.x] = sum;
}

/// Slices in order, so that a launch repeats.
__global__ void __launch_bounds__(kThreads)
    SumSlicesKernel(const float* partial, uint32_t slices, uint32_t count, float* sums) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0.0F;
  for (uint32_t s = 0; s < slices; ++s) sum += partial[size_t{s} * count + i];
  sums[i] += sum;
}

template <int kHeadDim>
Status LaunchFor(const PairNorms& norms, cudaStream_t stream) {
  const dim3 grid(Slices(norms.num_rows), norms.num_heads);
  auto* partial = static_cast<float*>(norms.workspace);
  if (norms.pairs == codec::PairLayout::kHalfSplit) {
    SliceKernel<codec::PairLayout::kHalfSplit, kHeadDim><<<grid, kThreads, 0, stream>>>(norms, partial);
  } else {
    SliceKernel<codec::PairLayout::kInterleaved, kHeadDim><<<grid, kThreads, 0, stream>>>(norms, partial);
  }
  const uint32_t count = norms.num_heads * kHeadDim / 2;
  SumSlicesKernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(partial, grid.x, count, norms.sums);
  return StatusOf(cudaGetLastError(), "pair norms");
}

}  // namespace

size_t PairNormsWorkspace(uint32_t head_dim, uint32_t num_heads, size_t num_rows) {
  return size_t{Slices(num_rows)} * num_heads * (head_dim / 2) * sizeof(float);
}

Status AddPairNorms(const PairNorms& norms, Stream stream) {
  if (norms.num_rows == 0) {
    return OkStatus();
  }
  return ForHeadDim(norms.head_dim, [&](auto d) { return LaunchFor<d()>(norms, AsStream(stream)); });
}

}  // namespace kvant::kernels::cuda
