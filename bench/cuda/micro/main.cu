#include <cuda_runtime.h>

#include <cstdio>

#include "clocks.h"
#include "device_memory.h"
#include "micro/micro.h"

int kvant::cuda_bench::Multiprocessors() {
  int count = 0;
  cuda_test::Check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "device");
  return count;
}

int main() {
  using namespace kvant::cuda_bench;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  try {
    MeasureInstructions();
    MeasureLaunches();
    MeasureMemory();
    kvant::kernels::cuda::Measured device;
    ReadDevice(&device);
    std::printf("%s, %d multiprocessors, %.0f MHz SM, %.0f MHz memory\n", device.device.c_str(), Multiprocessors(),
                device.sm_mhz, device.memory_mhz);
  } catch (const kvant::cuda_test::DeviceError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
