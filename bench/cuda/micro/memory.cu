#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "bulk_read.cuh"
#include "micro/micro.h"
#include "timed_graph.h"

namespace kvant::cuda_bench {
namespace {

using cuda_test::Check;
using cuda_test::DeviceBuffer;

constexpr int kRepeats = 11;
constexpr size_t kPool = size_t{8} << 30;

__global__ void __launch_bounds__(512) ReadKernel(const uint4* src, size_t count, uint32_t* sink) {
  uint32_t folded = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const size_t at = i + j * stride;
      v[j] = at < count ? __ldcs(src + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) folded ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (folded == 0x12345678U) *sink = folded;
}

__global__ void __launch_bounds__(512) CopyKernel(const uint4* src, uint4* dst, size_t count) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < count) v[j] = __ldcs(src + i + j * stride);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < count) __stcs(dst + i + j * stride, v[j]);
    }
  }
}

/// `bytes` at a time, moving on through the pool: seconds of a launch and its rate.
void Report(const char* name, size_t bytes, const std::function<void(size_t at)>& launch) {
  Stopwatch watch;
  const size_t places = std::max<size_t>(1, kPool / bytes);
  size_t call = 0;
  const double seconds =
      Median(InTurn(1, kRepeats, [&](size_t) { return watch.Seconds([&] { launch(call++ % places * bytes); }); })[0]);
  std::printf("%7.0f MB  %-42s %9.1f us  %7.1f GB/s\n", static_cast<double>(bytes) / 1e6, name, seconds * 1e6,
              static_cast<double>(bytes) / seconds / 1e9);
}

template <int kWarps, int kStages>
void ReportBulk(const std::byte* src, size_t bytes, int chunk) {
  auto* kernel = BulkReadKernel<kWarps, kStages>;
  const int shared = kWarps * kStages * chunk;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "bulk read");
  const std::string name = "bulk copies, " + std::to_string(kWarps) + " warps x " + std::to_string(kStages) +
                           " stages x " + std::to_string(chunk) + " B";
  const auto chunks = static_cast<int>(bytes / static_cast<size_t>(chunk));
  Report(name.c_str(), bytes,
         [&](size_t at) { kernel<<<Multiprocessors(), kWarps * 32, shared>>>(src + at, chunks, chunk); });
}

}  // namespace

void MeasureMemory() {
  DeviceBuffer src(kPool);
  const DeviceBuffer dst(kPool);
  const DeviceBuffer sink(4);
  src.Fill(0x5A);
  const int blocks = Multiprocessors() * 4;
  for (const size_t mb : {64, 256, 512, 1024, 4096, 8192}) {
    const size_t bytes = mb << 20;
    Report("read", bytes, [&](size_t at) {
      ReadKernel<<<blocks, 512>>>(reinterpret_cast<const uint4*>(src.data() + at), bytes / 16, sink.data<uint32_t>());
    });
    Report("copy kernel, payload", bytes, [&](size_t at) {
      CopyKernel<<<blocks, 512>>>(reinterpret_cast<const uint4*>(src.data() + at),
                                  reinterpret_cast<uint4*>(dst.data() + at), bytes / 16);
    });
    Report("memcpy, payload", bytes, [&](size_t at) {
      Check(cudaMemcpyAsync(dst.data() + at, src.data() + at, bytes, cudaMemcpyDeviceToDevice), "copy");
    });
  }
  for (const size_t mb : {64, 604, 4096}) {
    const size_t bytes = mb << 20;
    ReportBulk<12, 2>(src.data(), bytes, 9216);
    ReportBulk<12, 2>(src.data(), bytes, 8192);
    ReportBulk<12, 4>(src.data(), bytes, 4608);
    ReportBulk<8, 3>(src.data(), bytes, 9216);
    ReportBulk<16, 6>(src.data(), bytes, 2304);
    ReportBulk<12, 1>(src.data(), bytes, 9216);
  }
}

}  // namespace kvant::cuda_bench
