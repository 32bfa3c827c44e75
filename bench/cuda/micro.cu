// Micro-benchmarks of what the decode kernels depend on: memory bandwidth, instruction rates, tensor rates with
// subnormal operands, and launch costs. Results: docs/adr/0101-h200-microbenchmarks.md.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bulk_read.cuh"

namespace {

using kvant::cuda_bench::BulkReadKernel;

#define KVANT_BENCH_CHECK(call)                                                              \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));   \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (false)

int g_num_sms = 0;

float Median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median milliseconds of `launch`, called `repeats` times with the number of the call.
template <typename Launch>
float MedianMs(int repeats, Launch launch) {
  cudaEvent_t begin;
  cudaEvent_t end;
  KVANT_BENCH_CHECK(cudaEventCreate(&begin));
  KVANT_BENCH_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < repeats + 1; ++i) {
    KVANT_BENCH_CHECK(cudaEventRecord(begin));
    launch(i);
    KVANT_BENCH_CHECK(cudaEventRecord(end));
    KVANT_BENCH_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    KVANT_BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  KVANT_BENCH_CHECK(cudaEventDestroy(begin));
  KVANT_BENCH_CHECK(cudaEventDestroy(end));
  return Median(times);
}

// ---------------------------------------------------------------- memory

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

template <int kWarps, int kStages>
void ReportBulk(const std::byte* src, size_t pool, size_t bytes, int chunk) {
  const int shared = kWarps * kStages * chunk;
  auto* kernel = BulkReadKernel<kWarps, kStages>;
  KVANT_BENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const int chunks = static_cast<int>(bytes / chunk);
  const size_t rotations = std::max<size_t>(1, pool / bytes);
  const float ms = MedianMs(11, [&](int i) {
    kernel<<<g_num_sms, kWarps * 32, shared>>>(src + (i % rotations) * bytes, chunks, chunk);
  });
  std::printf("bulk read  %7.0f MB  %2d warps x %d stages x %5d B  %8.1f us  %7.1f GB/s\n", bytes / 1e6, kWarps, kStages,
              chunk, ms * 1e3, static_cast<double>(chunks) * chunk / ms / 1e6);
}

void BenchMemory() {
  const size_t pool = size_t{8} << 30;
  std::byte* src = nullptr;
  std::byte* dst = nullptr;
  uint32_t* sink = nullptr;
  KVANT_BENCH_CHECK(cudaMalloc(&src, pool));
  KVANT_BENCH_CHECK(cudaMalloc(&dst, pool));
  KVANT_BENCH_CHECK(cudaMalloc(&sink, 4));
  KVANT_BENCH_CHECK(cudaMemset(src, 0x5A, pool));
  KVANT_BENCH_CHECK(cudaMemset(dst, 0, pool));
  for (const size_t mb : {64, 256, 512, 1024, 4096, 8192}) {
    const size_t bytes = mb << 20;
    const size_t rotations = pool / bytes;
    const float read = MedianMs(11, [&](int i) {
      ReadKernel<<<g_num_sms * 4, 512>>>(reinterpret_cast<const uint4*>(src + (i % rotations) * bytes), bytes / 16, sink);
    });
    const float copy = MedianMs(11, [&](int i) {
      const size_t at = (i % rotations) * bytes;
      CopyKernel<<<g_num_sms * 4, 512>>>(reinterpret_cast<const uint4*>(src + at), reinterpret_cast<uint4*>(dst + at),
                                         bytes / 16);
    });
    const float memcpy_ms = MedianMs(11, [&](int i) {
      const size_t at = (i % rotations) * bytes;
      KVANT_BENCH_CHECK(cudaMemcpyAsync(dst + at, src + at, bytes, cudaMemcpyDeviceToDevice));
    });
    std::printf("%5zu MiB  read %7.1f GB/s  copy kernel %7.1f GB/s payload  memcpy %7.1f GB/s payload\n", mb,
                bytes / read / 1e6, bytes / copy / 1e6, bytes / memcpy_ms / 1e6);
  }
  for (const size_t mb : {64, 604, 4096}) {
    const size_t bytes = mb << 20;
    ReportBulk<12, 2>(src, pool, bytes, 9216);
    ReportBulk<12, 2>(src, pool, bytes, 8192);
    ReportBulk<12, 4>(src, pool, bytes, 4608);
    ReportBulk<8, 3>(src, pool, bytes, 9216);
    ReportBulk<16, 6>(src, pool, bytes, 2304);
    ReportBulk<12, 1>(src, pool, bytes, 9216);
  }
  KVANT_BENCH_CHECK(cudaFree(src));
  KVANT_BENCH_CHECK(cudaFree(dst));
  KVANT_BENCH_CHECK(cudaFree(sink));
}

// ---------------------------------------------------------------- instruction rates

constexpr int kChains = 8;
constexpr int kRounds = 256;

// One operation on one of eight independent chains. kOps counts the instructions of interest.
struct Lop3 {
  static constexpr const char* kName = "LOP3";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t b) {
    asm volatile("lop3.b32 %0, %0, %1, %2, 0xEA;" : "+r"(r[i]) : "r"(a), "r"(b));
  }
};
struct AndImmediate {
  static constexpr const char* kName = "LOP3 with immediate";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t) {
    asm volatile("lop3.b32 %0, %0, 0x7FF7FFF, %1, 0xEA;" : "+r"(r[i]) : "r"(a));
  }
};
struct FunnelShift {
  static constexpr const char* kName = "SHF (funnel, register)";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t b) {
    asm volatile("shf.r.wrap.b32 %0, %0, %1, %2;" : "+r"(r[i]) : "r"(a), "r"(b));
  }
};
struct Imad {
  static constexpr const char* kName = "IMAD (low)";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t b) {
    asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(r[i]) : "r"(a), "r"(b));
  }
};
struct ImadHi {
  static constexpr const char* kName = "IMAD.HI";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t) {
    asm volatile("mul.hi.u32 %0, %0, %1;" : "+r"(r[i]) : "r"(a));
  }
};
struct Prmt {
  static constexpr const char* kName = "PRMT";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t b) {
    asm volatile("prmt.b32 %0, %0, %1, %2;" : "+r"(r[i]) : "r"(a), "r"(b));
  }
};
struct Hfma2 {
  static constexpr const char* kName = "HFMA2";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t b) {
    asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(r[i]) : "r"(a), "r"(b));
  }
};
struct Hmul2 {
  static constexpr const char* kName = "HMUL2";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t) {
    asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(r[i]) : "r"(a));
  }
};
struct Ffma {
  static constexpr const char* kName = "FFMA";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t b) {
    asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+r"(r[i]) : "r"(a), "r"(b));
  }
};
struct Fmax {
  static constexpr const char* kName = "FMNMX";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t) {
    asm volatile("max.f32 %0, %0, %1;" : "+r"(r[i]) : "r"(a));
  }
};
struct Ex2 {
  static constexpr const char* kName = "MUFU.EX2";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t, uint32_t) {
    asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+r"(r[i]));
  }
};
struct Ex2Half {
  static constexpr const char* kName = "MUFU.EX2 f16x2 (two values)";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t, uint32_t) {
    asm volatile("ex2.approx.f16x2 %0, %0;" : "+r"(r[i]));
  }
};
struct PackHalf {
  static constexpr const char* kName = "F2FP (two floats to f16x2)";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t a, uint32_t) {
    asm volatile("cvt.rn.f16x2.f32 %0, %0, %1;" : "+r"(r[i]) : "r"(a));
  }
};
struct WidenHalf {
  static constexpr const char* kName = "HADD2.F32 (f16 to f32)";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t, uint32_t) {
    asm volatile("{.reg .b16 l, h; mov.b32 {l, h}, %0; cvt.f32.f16 %0, l;}" : "+r"(r[i]));
  }
};
struct IntToFloat {
  static constexpr const char* kName = "I2F";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t, uint32_t) {
    asm volatile("cvt.rn.f32.s32 %0, %0;" : "+r"(r[i]));
  }
};
struct MoveMatrix {
  static constexpr const char* kName = "MOVM (movmatrix.trans)";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t, uint32_t) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r[i]));
  }
};
struct Shuffle {
  static constexpr const char* kName = "SHFL.BFLY";
  static constexpr int kOps = 1;
  static __device__ void Do(uint32_t (&r)[kChains], int i, uint32_t, uint32_t) {
    asm volatile("shfl.sync.bfly.b32 %0, %0, 4, 31, 0xFFFFFFFF;" : "+r"(r[i]));
  }
};

__device__ void MmaF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ void MmaU8S8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename Op>
__global__ void RateKernel(uint32_t a, uint32_t b, uint32_t* out, int64_t* cycles) {
  uint32_t r[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) r[i] = a * 7 + threadIdx.x * 31 + i;
  __syncthreads();
  const int64_t begin = clock64();
  for (int n = 0; n < kRounds; ++n) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int i = 0; i < kChains; ++i) Op::Do(r, i, a, b);
    }
  }
  __syncthreads();
  const int64_t end = clock64();
  uint32_t folded = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) folded ^= r[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = folded;
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
}

enum class Mix { kMmaF16, kMmaU8, kMmaUnpack };

// Tensor instructions alone and beside what unpacking needs.
template <Mix kMix>
__global__ void MixKernel(uint32_t a_bits, uint32_t b_bits, float* out, int64_t* cycles) {
  float c[8][4] = {};
  int ci[8][4] = {};
  uint32_t word[4];
  for (int i = 0; i < 4; ++i) word[i] = a_bits;
  __syncthreads();
  const int64_t begin = clock64();
  for (int n = 0; n < kRounds; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kMix == Mix::kMmaF16) MmaF16(c[i], word, b_bits, b_bits);
      if constexpr (kMix == Mix::kMmaU8) MmaU8S8(ci[i], word, b_bits, b_bits);
      if constexpr (kMix == Mix::kMmaUnpack) {
        // New words every round, as the inner loop has them: nothing can be hoisted.
        uint32_t field[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          asm volatile("lop3.b32 %0, %1, %2, 0, 0xC0;" : "=r"(field[j]) : "r"(word[j]), "r"(0x30003U << i));
        }
        asm volatile("shf.r.wrap.b32 %0, %0, %0, %1;" : "+r"(word[i % 4]) : "r"(b_bits));
        MmaF16(c[i], field, b_bits, b_bits);
      }
    }
  }
  __syncthreads();
  const int64_t end = clock64();
  float folded = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 4; ++j) folded += c[i][j] + static_cast<float>(ci[i][j]);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = folded;
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
}

double MedianCycles(const int64_t* device) {
  std::vector<int64_t> cycles(g_num_sms);
  KVANT_BENCH_CHECK(cudaMemcpy(cycles.data(), device, cycles.size() * 8, cudaMemcpyDeviceToHost));
  std::sort(cycles.begin(), cycles.end());
  return static_cast<double>(cycles[cycles.size() / 2]);
}

struct RateBuffers {
  float* out = nullptr;
  int64_t* cycles = nullptr;
};

template <typename Op>
void ReportRate(RateBuffers buffers) {
  constexpr int kThreads = 512;
  for (int i = 0; i < 2; ++i) {
    RateKernel<Op><<<g_num_sms, kThreads>>>(3, 5, reinterpret_cast<uint32_t*>(buffers.out), buffers.cycles);
    KVANT_BENCH_CHECK(cudaDeviceSynchronize());
  }
  const double ops = static_cast<double>(kRounds) * 8 * kChains * Op::kOps * kThreads;
  std::printf("%-30s %6.1f lanes/clk/SM\n", Op::kName, ops / MedianCycles(buffers.cycles));
}

template <Mix kMix>
void ReportMix(const char* name, uint32_t a_bits, uint32_t b_bits, RateBuffers buffers) {
  constexpr int kThreads = 384;
  for (int i = 0; i < 2; ++i) {
    MixKernel<kMix><<<g_num_sms, kThreads>>>(a_bits, b_bits, buffers.out, buffers.cycles);
    KVANT_BENCH_CHECK(cudaDeviceSynchronize());
  }
  const double groups = static_cast<double>(kRounds) * 8 * kThreads / 32 / 4;
  std::printf("%-46s %6.2f cycles a group and scheduler\n", name, MedianCycles(buffers.cycles) / groups);
}

void BenchInstructions() {
  RateBuffers buffers;
  KVANT_BENCH_CHECK(cudaMalloc(&buffers.out, sizeof(float) * 512 * g_num_sms));
  KVANT_BENCH_CHECK(cudaMalloc(&buffers.cycles, 8 * g_num_sms));
  ReportRate<Lop3>(buffers);
  ReportRate<AndImmediate>(buffers);
  ReportRate<FunnelShift>(buffers);
  ReportRate<Imad>(buffers);
  ReportRate<ImadHi>(buffers);
  ReportRate<Prmt>(buffers);
  ReportRate<Hfma2>(buffers);
  ReportRate<Hmul2>(buffers);
  ReportRate<Ffma>(buffers);
  ReportRate<Fmax>(buffers);
  ReportRate<Ex2>(buffers);
  ReportRate<Ex2Half>(buffers);
  ReportRate<PackHalf>(buffers);
  ReportRate<WidenHalf>(buffers);
  ReportRate<IntToFloat>(buffers);
  ReportRate<MoveMatrix>(buffers);
  ReportRate<Shuffle>(buffers);
  ReportMix<Mix::kMmaF16>("mma m16n8k16 f16, normal A (0x3C00)", 0x3C003C00U, 0x3C003C00U, buffers);
  ReportMix<Mix::kMmaF16>("mma m16n8k16 f16, subnormal A (0x0003)", 0x00030003U, 0x3C003C00U, buffers);
  ReportMix<Mix::kMmaF16>("mma m16n8k16 f16, subnormal A and B", 0x00030003U, 0x00110011U, buffers);
  ReportMix<Mix::kMmaU8>("mma m16n8k32 u8 s8", 0x01020304U, 0x01020304U, buffers);
  ReportMix<Mix::kMmaUnpack>("mma + 4 LOP3 + 1 SHF, each waiting for the last", 0x01230123U, 0x3C003C00U, buffers);
  KVANT_BENCH_CHECK(cudaFree(buffers.out));
  KVANT_BENCH_CHECK(cudaFree(buffers.cycles));
}

// Every subnormal field value times a few weights must come out exactly.
__global__ void SubnormalKernel(int* wrong) {
  const int lane = threadIdx.x;
  for (uint32_t code = 0; code < 1024; ++code) {
    const uint32_t a[4] = {code * 0x10001U, code * 0x10001U, code * 0x10001U, code * 0x10001U};
    const __half weight = __float2half(static_cast<float>(code % 61 + 1));
    const uint32_t b = __half_as_ushort(weight) * 0x10001U;
    float c[4] = {};
    MmaF16(c, a, b, b);
    const float expected = 16.0F * static_cast<float>(code) * 0x1p-24F * static_cast<float>(code % 61 + 1);
    for (const float value : c) {
      if (value != expected) atomicAdd(wrong, 1);
    }
  }
  if (lane == 0 && *wrong < 0) *wrong = 0;
}

void CheckSubnormals() {
  int* wrong = nullptr;
  KVANT_BENCH_CHECK(cudaMalloc(&wrong, 4));
  KVANT_BENCH_CHECK(cudaMemset(wrong, 0, 4));
  SubnormalKernel<<<1, 32>>>(wrong);
  int count = -1;
  KVANT_BENCH_CHECK(cudaMemcpy(&count, wrong, 4, cudaMemcpyDeviceToHost));
  std::printf("subnormal operands: %d of %d results differ from the exact product sum\n", count, 1024 * 32 * 4);
  KVANT_BENCH_CHECK(cudaFree(wrong));
}

// ---------------------------------------------------------------- launches and clocks

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

template <typename Record>
void ReportGraph(const char* name, Record record) {
  constexpr int kLaunches = 200;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  KVANT_BENCH_CHECK(cudaStreamCreate(&stream));
  KVANT_BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kLaunches; ++i) record(stream);
  KVANT_BENCH_CHECK(cudaStreamEndCapture(stream, &graph));
  KVANT_BENCH_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin;
  cudaEvent_t end;
  KVANT_BENCH_CHECK(cudaEventCreate(&begin));
  KVANT_BENCH_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    KVANT_BENCH_CHECK(cudaEventRecord(begin, stream));
    KVANT_BENCH_CHECK(cudaGraphLaunch(executable, stream));
    KVANT_BENCH_CHECK(cudaEventRecord(end, stream));
    KVANT_BENCH_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    KVANT_BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  std::printf("%-58s %6.2f us a launch\n", name, Median(times) * 1e3 / kLaunches);
  KVANT_BENCH_CHECK(cudaGraphExecDestroy(executable));
  KVANT_BENCH_CHECK(cudaGraphDestroy(graph));
  KVANT_BENCH_CHECK(cudaStreamDestroy(stream));
}

void LaunchDependent(cudaStream_t stream, int* counter) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(g_num_sms);
  config.blockDim = dim3(384);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  KVANT_BENCH_CHECK(cudaLaunchKernelEx(&config, DependentKernel, counter));
}

void BenchLaunches() {
  constexpr int kShared = 221184;
  int* counter = nullptr;
  KVANT_BENCH_CHECK(cudaMalloc(&counter, 4));
  KVANT_BENCH_CHECK(cudaFuncSetAttribute(EmptyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  ReportGraph("1 block of 32 threads", [&](cudaStream_t s) { EmptyKernel<<<1, 32, 0, s>>>(nullptr); });
  ReportGraph("132 blocks of 384 threads", [&](cudaStream_t s) { EmptyKernel<<<g_num_sms, 384, 0, s>>>(nullptr); });
  ReportGraph("132 blocks of 384 threads, 216 KB shared", [&](cudaStream_t s) {
    EmptyKernel<<<g_num_sms, 384, kShared, s>>>(nullptr);
  });
  ReportGraph("the same, one atomic a block", [&](cudaStream_t s) { EmptyKernel<<<g_num_sms, 384, kShared, s>>>(counter); });
  ReportGraph("132 blocks of 384 threads, programmatic dependent launch",
              [&](cudaStream_t s) { LaunchDependent(s, counter); });
  KVANT_BENCH_CHECK(cudaFree(counter));
}

__global__ void ClockKernel(int64_t* out) {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
  const int64_t begin = clock64();
  while (clock64() - begin < 200'000'000) {
  }
  const int64_t end = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
  out[0] = end - begin;
  out[1] = end_ns - begin_ns;
}

void ReportClock() {
  int64_t* device = nullptr;
  int64_t host[2];
  KVANT_BENCH_CHECK(cudaMalloc(&device, 16));
  ClockKernel<<<1, 1>>>(device);
  KVANT_BENCH_CHECK(cudaMemcpy(host, device, 16, cudaMemcpyDeviceToHost));
  std::printf("SM clock %.0f MHz\n", static_cast<double>(host[0]) / static_cast<double>(host[1]) * 1e3);
  KVANT_BENCH_CHECK(cudaFree(device));
}

}  // namespace

int main() {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::printf("no CUDA device: nothing measured\n");
    return 77;
  }
  g_num_sms = properties.multiProcessorCount;
  std::printf("%s, %d multiprocessors, L2 %d MB, shared memory %zu B a block\n", properties.name, g_num_sms,
              properties.l2CacheSize >> 20, properties.sharedMemPerBlockOptin);
  CheckSubnormals();
  BenchInstructions();
  BenchLaunches();
  BenchMemory();
  ReportClock();
  return 0;
}
