#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

/// The instructions the kernels are made of, one thin function each. sm_90 has bulk copies that complete on an
/// mbarrier; sm_80 gets the same ring from cp.async and commit groups.
namespace kvant::kernels::cuda {

#define KVANT_DEVICE __device__ __forceinline__

/// A block's dynamic shared memory, addressed by 32-bit offsets: generic pointers would cost two registers each.
extern __shared__ __align__(128) std::byte g_shared[];
template <typename T>
KVANT_DEVICE T& Shared(uint32_t offset) {
  return *reinterpret_cast<T*>(g_shared + offset);
}
KVANT_DEVICE uint4 Load16(uint32_t offset) { return Shared<const uint4>(offset); }
KVANT_DEVICE uint2 Load8(uint32_t offset) { return Shared<const uint2>(offset); }
KVANT_DEVICE uint32_t Load4(uint32_t offset) { return Shared<const uint32_t>(offset); }
KVANT_DEVICE float LoadHalf(uint32_t offset) { return __half2float(Shared<const __half>(offset)); }

KVANT_DEVICE uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
KVANT_DEVICE uint32_t Bits(__half2 h) { return *reinterpret_cast<uint32_t*>(&h); }
KVANT_DEVICE __half2 AsHalf2(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }

/// c += a · b on 16 × 8 × 16: fp16 operands, fp32 sums. Subnormal operands are exact and cost nothing (ADR 0101).
KVANT_DEVICE void Mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Transpose of an 8 × 8 matrix of 16-bit numbers spread over the warp.
KVANT_DEVICE uint32_t Transpose8x8(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

KVANT_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats as fp16, `low` in the lower half.
KVANT_DEVICE uint32_t PackHalf2(float low, float high) { return Bits(__floats2half2_rn(low, high)); }

KVANT_DEVICE uint32_t EvenBytes(uint32_t w) { return w & 0x00FF00FFU; }
KVANT_DEVICE uint32_t OddBytes(uint32_t w) { return __byte_perm(w, 0, 0x4341); }

KVANT_DEVICE float ReduceMaxOverRows(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 16));
}

#if __CUDA_ARCH__ >= 900
KVANT_DEVICE void BarrierInit(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
}
KVANT_DEVICE void BarrierInitFence() { asm volatile("fence.mbarrier_init.release.cluster;"); }
KVANT_DEVICE void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
KVANT_DEVICE void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nKVANT_AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra KVANT_DONE;\nbra KVANT_AGAIN;\nKVANT_DONE:\n}" ::
          "r"(barrier),
      "r"(parity)
      : "memory");
}
/// One thread copies `bytes` (a multiple of 16) and the barrier counts them. The data is read once: first out of L2.
KVANT_DEVICE void BulkCopy(uint32_t dst, const std::byte* src, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(dst),
      "l"(src), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
KVANT_DEVICE uint64_t EvictFirst() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#endif

/// Four 8 × 8 matrices of 16-bit numbers as operands, or transposed: lane 8·m + r says where row r of matrix m lies.
KVANT_DEVICE uint4 LoadMatrices(uint32_t row) {
  uint4 m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
               : "r"(row)
               : "memory");
  return m;
}
KVANT_DEVICE uint4 LoadTransposed(uint32_t row) {
  uint4 m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
               : "r"(row)
               : "memory");
  return m;
}

/// A thread copies 16 bytes into shared memory, past the first level cache.
KVANT_DEVICE void CopyAsync16(uint32_t dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

/// A warp copies 16 bytes a lane; CommitCopies closes what was issued since the last one.
KVANT_DEVICE void WarpCopy(uint32_t dst, const std::byte* src, uint32_t bytes, uint32_t lane) {
  for (uint32_t at = lane * 16; at < bytes; at += 512) CopyAsync16(dst + at, src + at);
}
KVANT_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
KVANT_DEVICE void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace kvant::kernels::cuda
