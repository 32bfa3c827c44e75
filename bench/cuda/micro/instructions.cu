#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "device_memory.h"
#include "micro/micro.h"

namespace kvant::cuda_bench {
namespace {

using cuda_test::Check;
using cuda_test::DeviceBuffer;

constexpr int kChains = 8;
constexpr int kRounds = 256;

enum class Op {
  kLop3,
  kAndImmediate,
  kFunnelShift,
  kImad,
  kImadHi,
  kPrmt,
  kHfma2,
  kHmul2,
  kFfma,
  kFmax,
  kHmax2,
  kHset2,
  kEx2,
  kEx2Half,
  kPackHalf,
  kWidenHalf,
  kFloatToInt,
  kIntToFloat,
  kMoveMatrix,
  kShuffle
};
constexpr const char* kNames[] = {"LOP3",
                                  "LOP3 with immediate",
                                  "SHF (funnel, register)",
                                  "IMAD (low)",
                                  "IMAD.HI",
                                  "PRMT",
                                  "HFMA2",
                                  "HMUL2",
                                  "FFMA",
                                  "FMNMX",
                                  "HMNMX2",
                                  "HSET2 (compare)",
                                  "MUFU.EX2",
                                  "MUFU.EX2 f16x2 (two values)",
                                  "F2FP (two floats to f16x2)",
                                  "HADD2.F32 (f16 to f32)",
                                  "F2I",
                                  "I2F",
                                  "MOVM (movmatrix.trans)",
                                  "SHFL.BFLY"};
constexpr size_t kNumOps = std::size(kNames);

// One instruction on one of the independent chains.
template <Op kOp>
__device__ __forceinline__ void Do(uint32_t& r, uint32_t a, uint32_t b) {
  if constexpr (kOp == Op::kLop3) asm volatile("lop3.b32 %0, %0, %1, %2, 0xEA;" : "+r"(r) : "r"(a), "r"(b));
  if constexpr (kOp == Op::kAndImmediate) asm volatile("lop3.b32 %0, %0, 0x7FF7FFF, %1, 0xEA;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kFunnelShift) asm volatile("shf.r.wrap.b32 %0, %0, %1, %2;" : "+r"(r) : "r"(a), "r"(b));
  if constexpr (kOp == Op::kImad) asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(r) : "r"(a), "r"(b));
  if constexpr (kOp == Op::kImadHi) asm volatile("mul.hi.u32 %0, %0, %1;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kPrmt) asm volatile("prmt.b32 %0, %0, %1, %2;" : "+r"(r) : "r"(a), "r"(b));
  if constexpr (kOp == Op::kHfma2) asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(r) : "r"(a), "r"(b));
  if constexpr (kOp == Op::kHmul2) asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kFfma) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+r"(r) : "r"(a), "r"(b));
  if constexpr (kOp == Op::kFmax) asm volatile("max.f32 %0, %0, %1;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kHmax2) asm volatile("max.f16x2 %0, %0, %1;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kHset2) asm volatile("set.ge.u32.f16x2 %0, %0, %1;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kEx2) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+r"(r));
  if constexpr (kOp == Op::kEx2Half) asm volatile("ex2.approx.f16x2 %0, %0;" : "+r"(r));
  if constexpr (kOp == Op::kPackHalf) asm volatile("cvt.rn.f16x2.f32 %0, %0, %1;" : "+r"(r) : "r"(a));
  if constexpr (kOp == Op::kWidenHalf)
    asm volatile("{.reg .b16 l, h; mov.b32 {l, h}, %0; cvt.f32.f16 %0, l;}" : "+r"(r));
  if constexpr (kOp == Op::kFloatToInt) asm volatile("cvt.rmi.s32.f32 %0, %0;" : "+r"(r));
  if constexpr (kOp == Op::kIntToFloat) asm volatile("cvt.rn.f32.s32 %0, %0;" : "+r"(r));
  if constexpr (kOp == Op::kMoveMatrix) asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r));
  if constexpr (kOp == Op::kShuffle) asm volatile("shfl.sync.bfly.b32 %0, %0, 4, 31, 0xFFFFFFFF;" : "+r"(r));
}

__device__ void MmaF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ void MmaU8S8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <Op kOp>
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
      for (int i = 0; i < kChains; ++i) Do<kOp>(r[i], a, b);
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
__global__ void MixKernel(uint32_t a_bits, uint32_t b_bits, uint32_t* out, int64_t* cycles) {
  float c[8][4] = {};
  int ci[8][4] = {};
  uint32_t word[4];
  for (uint32_t& w : word) w = a_bits;
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
  out[blockIdx.x * blockDim.x + threadIdx.x] = __float_as_uint(folded);
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
}

// Every subnormal field value times a few weights must come out exactly.
__global__ void SubnormalKernel(int* wrong) {
  for (uint32_t code = 0; code < 1024; ++code) {
    const uint32_t a[4] = {code * 0x10001U, code * 0x10001U, code * 0x10001U, code * 0x10001U};
    const uint32_t b = __half_as_ushort(__float2half(static_cast<float>(code % 61 + 1))) * 0x10001U;
    float c[4] = {};
    MmaF16(c, a, b, b);
    const float expected = 16.0F * static_cast<float>(code) * 0x1p-24F * static_cast<float>(code % 61 + 1);
    for (const float value : c) {
      if (value != expected) atomicAdd(wrong, 1);
    }
  }
}

/// Cycles of a kernel that times itself on every multiprocessor; the second launch counts.
class CycleCounter {
 public:
  template <class Kernel, class... Args>
  double Cycles(Kernel kernel, int threads, Args... args) {
    for (int i = 0; i < 2; ++i) {
      kernel<<<Multiprocessors(), threads>>>(args..., out_.data<uint32_t>(), cycles_.data<int64_t>());
      Check(cudaDeviceSynchronize(), "instructions");
    }
    std::vector<int64_t> cycles = cycles_.Download<int64_t>();
    std::sort(cycles.begin(), cycles.end());
    return static_cast<double>(cycles[cycles.size() / 2]);
  }

 private:
  DeviceBuffer out_{size_t{4} * 512 * static_cast<size_t>(Multiprocessors())};
  DeviceBuffer cycles_{size_t{8} * static_cast<size_t>(Multiprocessors())};
};

template <size_t... kIndex>
void MeasureRates(CycleCounter& counter, std::index_sequence<kIndex...>) {
  constexpr int kThreads = 512;
  constexpr double kOps = double{kRounds} * 8 * kChains * kThreads;
  (std::printf("%-30s %6.1f lanes/clk/SM\n", kNames[kIndex],
               kOps / counter.Cycles(RateKernel<static_cast<Op>(kIndex)>, kThreads, 3U, 5U)),
   ...);
}

template <Mix kMix>
void MeasureMix(CycleCounter& counter, const char* name, uint32_t a_bits, uint32_t b_bits) {
  constexpr int kThreads = 384;
  constexpr double kGroups = double{kRounds} * 8 * kThreads / 32 / 4;
  std::printf("%-46s %6.2f cycles a group and scheduler\n", name,
              counter.Cycles(MixKernel<kMix>, kThreads, a_bits, b_bits) / kGroups);
}

}  // namespace

void MeasureInstructions() {
  const DeviceBuffer wrong(4);
  SubnormalKernel<<<1, 32>>>(wrong.data<int>());
  std::printf("subnormal operands: %d of %d results differ from the exact product sum\n", wrong.Download<int>()[0],
              1024 * 32 * 4);
  CycleCounter counter;
  MeasureRates(counter, std::make_index_sequence<kNumOps>());
  MeasureMix<Mix::kMmaF16>(counter, "mma m16n8k16 f16, normal A (0x3C00)", 0x3C003C00U, 0x3C003C00U);
  MeasureMix<Mix::kMmaF16>(counter, "mma m16n8k16 f16, subnormal A (0x0003)", 0x00030003U, 0x3C003C00U);
  MeasureMix<Mix::kMmaF16>(counter, "mma m16n8k16 f16, subnormal A and B", 0x00030003U, 0x00110011U);
  MeasureMix<Mix::kMmaU8>(counter, "mma m16n8k32 u8 s8", 0x01020304U, 0x01020304U);
  MeasureMix<Mix::kMmaUnpack>(counter, "mma + 4 LOP3 + 1 SHF, each waiting for the last", 0x01230123U, 0x3C003C00U);
}

}  // namespace kvant::cuda_bench
