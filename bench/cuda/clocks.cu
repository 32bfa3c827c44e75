#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>

#include "clocks.h"
#include "device_memory.h"

namespace kvant::cuda_bench {
namespace {

using cuda_test::Check;
using cuda_test::DeviceBuffer;

// Cycles of one multiprocessor, and the nanoseconds they took.
__global__ void SpinKernel(int64_t* out) {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
  const int64_t begin = clock64();
  while (clock64() - begin < 20'000'000) {
  }
  const int64_t end = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
  out[0] = end - begin;
  out[1] = end_ns - begin_ns;
}

double SmMegahertz() {
  const DeviceBuffer buffer(16);
  SpinKernel<<<1, 1>>>(buffer.data<int64_t>());
  Check(cudaDeviceSynchronize(), "clock");
  const std::vector<int64_t> read = buffer.Download<int64_t>();
  return static_cast<double>(read[0]) / static_cast<double>(read[1]) * 1e3;
}

// The driver's own library, where it is there: nothing is linked for one number.
double MemoryMegahertz() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return 0;
  using Init = int (*)();
  using GetDevice = int (*)(unsigned, void**);
  using GetClock = int (*)(void*, int, unsigned*);
  constexpr int kMemoryClock = 2;
  const auto init = reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"));
  const auto get_device = reinterpret_cast<GetDevice>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto get_clock = reinterpret_cast<GetClock>(dlsym(library, "nvmlDeviceGetClockInfo"));
  void* device = nullptr;
  unsigned megahertz = 0;
  const bool read = init != nullptr && get_device != nullptr && get_clock != nullptr && init() == 0 &&
                    get_device(0, &device) == 0 && get_clock(device, kMemoryClock, &megahertz) == 0;
  dlclose(library);
  return read ? megahertz : 0;
}

}  // namespace

void ReadDevice(kernels::cuda::Measured* measured) {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "device");
  measured->device = properties.name;
  measured->architecture = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  measured->sm_mhz = SmMegahertz();
  measured->memory_mhz = MemoryMegahertz();
}

}  // namespace kvant::cuda_bench
