#pragma once

#include <immintrin.h>

#include <cstdint>

// lanes_portable.h for AVX-512 with VNNI: one tile of tokens a register.
namespace kvant::kernels {
namespace {

struct LanesAvx512 {
  static constexpr uint32_t kLanes = 16;
  static constexpr uint32_t kMaxRows = 8;
  using F = __m512;
  using I = __m512i;

  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* src) { return _mm512_loadu_ps(src); }
  static F LoadHalf(const void* src) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(src))); }
  static void Store(float* dst, F a) { _mm512_storeu_ps(dst, a); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Abs(F a) { return _mm512_abs_ps(a); }
  static float Sum(F a) { return _mm512_reduce_add_ps(a); }
  static float Largest(F a) { return _mm512_reduce_max_ps(a); }
  static F ZeroBelow(F a, F x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
  }
  static F ScaleByPowerOf2(F a, I n) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(n, 23)));
  }

  static I Round(F a) { return _mm512_cvtps_epi32(a); }
  static F ToFloats(I a) { return _mm512_cvtepi32_ps(a); }
  static I SetInt(int32_t x) { return _mm512_set1_epi32(x); }
  static I LoadInt(const void* src) { return _mm512_loadu_si512(src); }
  static I AddInt(I a, I b) { return _mm512_add_epi32(a, b); }
  static int32_t SumInt(I a) { return _mm512_reduce_add_epi32(a); }
  static I And(I a, I b) { return _mm512_and_si512(a, b); }
  template <int kCount>
  static I ShiftRight16(I a) {
    return _mm512_srli_epi16(a, kCount);
  }
  static I DotPairs(I acc, I a, I b) { return _mm512_dpwssd_epi32(acc, a, b); }
  static void StorePaired(void* dst, I a) {
    const __m256i packed = _mm512_cvtepi32_epi16(a);
    const __m256i low = _mm256_shufflelo_epi16(packed, _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256(static_cast<__m256i*>(dst), _mm256_shufflehi_epi16(low, _MM_SHUFFLE(3, 1, 2, 0)));
  }
  static void Prefetch(const void* address) { _mm_prefetch(address, _MM_HINT_T0); }
};

}  // namespace
}  // namespace kvant::kernels
