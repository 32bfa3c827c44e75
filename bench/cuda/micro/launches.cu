#include <cuda_runtime.h>

#include <cstdio>
#include <functional>

#include "micro/micro.h"
#include "timed_graph.h"

namespace kvant::cuda_bench {
namespace {

using cuda_test::Check;
using cuda_test::DeviceBuffer;

__global__ void EmptyKernel(int* counter) {
  extern __shared__ std::byte scratch[];
  if (counter != nullptr && threadIdx.x == 0) atomicAdd(counter, scratch[0] == std::byte{1} ? 0 : 1);
}

__global__ void DependentKernel(int* counter) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}

void Report(const char* name, const std::function<void(cudaStream_t)>& launch) {
  const TimedGraph graph(200, [&](cudaStream_t stream, int) { launch(stream); });
  Stopwatch watch;
  const double seconds = Median(InTurn(1, 11, [&](size_t) { return graph.Seconds(watch); })[0]);
  std::printf("%-58s %6.2f us a launch\n", name, seconds * 1e6);
}

void LaunchDependent(cudaStream_t stream, int* counter) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(Multiprocessors()));
  config.blockDim = dim3(384);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Check(cudaLaunchKernelEx(&config, DependentKernel, counter), "launch");
}

}  // namespace

void MeasureLaunches() {
  constexpr int kShared = 221184;
  const DeviceBuffer counter(4);
  int* count = counter.data<int>();
  const int sms = Multiprocessors();
  Check(cudaFuncSetAttribute(EmptyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "launch");
  Report("1 block of 32 threads", [](cudaStream_t s) { EmptyKernel<<<1, 32, 0, s>>>(nullptr); });
  Report("a block of 384 threads a multiprocessor", [&](cudaStream_t s) { EmptyKernel<<<sms, 384, 0, s>>>(nullptr); });
  Report("the same, 216 KB shared", [&](cudaStream_t s) { EmptyKernel<<<sms, 384, kShared, s>>>(nullptr); });
  Report("the same, one atomic a block", [&](cudaStream_t s) { EmptyKernel<<<sms, 384, kShared, s>>>(count); });
  Report("without shared memory, programmatic dependent launch", [&](cudaStream_t s) { LaunchDependent(s, count); });
}

}  // namespace kvant::cuda_bench
