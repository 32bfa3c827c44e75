#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/lanes_x86.h"

// lanes_portable.h for AVX-512 with VNNI: one tile of tokens a register.
namespace kvant::kernels {
namespace {

struct LanesAvx512 {
  static constexpr uint32_t kLanes = 16;
  static constexpr uint32_t kMaxRows = 8;
  using F = __m512;
  using I = __m512i;
  using H = __m512i;  ///< 2·kLanes halves, as bits
  using B = __m512i;  ///< 4·kLanes bytes

  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* src) { return _mm512_loadu_ps(src); }
  static F LoadHalf(const void* src) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(src))); }
  static F SetHalf(uint16_t bits) { return Set(_cvtsh_ss(bits)); }
  static void Store(float* dst, F a) { _mm512_storeu_ps(dst, a); }
  /// Rounded to nearest even; true when every half is finite.
  static void StoreHalf(void* dst, F a) { _mm256_storeu_si256(static_cast<__m256i*>(dst), Halves(a)); }
  static bool StoreHalfIfFinite(void* dst, F a) {
    const __m256i halves = Halves(a);
    _mm256_storeu_si256(static_cast<__m256i*>(dst), halves);
    const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF));
    return _mm256_cmpgt_epi16_mask(magnitude, _mm256_set1_epi16(0x7BFF)) == 0;
  }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Abs(F a) { return _mm512_abs_ps(a); }
  static float Sum(F a) { return _mm512_reduce_add_ps(a); }
  static float Largest(F a) { return _mm512_reduce_max_ps(a); }
  static F ZeroBelow(F a, F x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
  }
  static F Fraction(F x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
  static F ScaleByFloor(F a, F x, float limit) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a, x);
  }

  static I Round(F a) { return _mm512_cvtps_epi32(a); }
  static I Truncate(F a) { return _mm512_cvttps_epi32(a); }
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
  /// Keeps a sum in its register: rows are then met one after the other, where GCC mixes them and runs out.
  static void Pin(I& /*a*/) {}  // there are registers enough
  static I DotPairs(I acc, I a, I b) { return _mm512_dpwssd_epi32(acc, a, b); }
  static void StorePaired(void* dst, I a) {
    const __m256i packed = _mm512_cvtepi32_epi16(a);
    const __m256i low = _mm256_shufflelo_epi16(packed, _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256(static_cast<__m256i*>(dst), _mm256_shufflehi_epi16(low, _MM_SHUFFLE(3, 1, 2, 0)));
  }

  static H LoadHalfBits(const void* src) { return _mm512_loadu_si512(src); }
  static void StoreHalfBits(void* dst, H a) { _mm512_storeu_si512(dst, a); }
  static H HalfMagnitude(H a) { return _mm512_and_si512(a, _mm512_set1_epi16(0x7FFF)); }
  /// Bits of halves to integers in the same order, and back.
  static H Sortable(H a) {
    return _mm512_xor_si512(a, _mm512_and_si512(_mm512_srai_epi16(a, 15), _mm512_set1_epi16(0x7FFF)));
  }
  static H MaxHalfBits(H a, H b) { return _mm512_max_epi16(a, b); }
  static H MinHalfBits(H a, H b) { return _mm512_min_epi16(a, b); }
  static int16_t LargestHalfBits(H a) {
    const __m256i half = _mm256_max_epi16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return LargestInt16(_mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
  }
  static int16_t SmallestHalfBits(H a) {
    const __m256i half = _mm256_min_epi16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return SmallestInt16(_mm_min_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
  }

  /// Four vectors in order as signed bytes, saturated.
  static B Narrow(I a, I b, I c, I d) {
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
  }
  static B NarrowUnsigned(I a, I b, I c, I d) {
    const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
  }
  static B ClampBytes(B a, int8_t low, int8_t high) {
    return _mm512_min_epi8(_mm512_max_epi8(a, _mm512_set1_epi8(low)), _mm512_set1_epi8(high));
  }
  static B AddBytes(B a, uint8_t b) { return _mm512_add_epi8(a, _mm512_set1_epi8(static_cast<char>(b))); }
  static void StoreBytes(void* dst, B a) { _mm512_storeu_si512(dst, a); }
  /// Every eight codes as four bytes: the first four low, the others high.
  static void StoreNibbles(void* dst, B a) {
    const __m512i joined = _mm512_or_si512(a, _mm512_srli_epi64(a, 28));
    _mm256_storeu_si256(static_cast<__m256i*>(dst), _mm512_cvtepi64_epi32(joined));
  }
  static I LoadBytes(const void* src) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(src)));
  }
  /// 16 halves, twice over: a look-up then needs no mask for the bit above the code.
  static H LoadTable(const uint16_t* halves) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }
  /// 32 codes as StoreNibbles packs them to the halves they stand for.
  static void LookUpNibbles(const void* src, H table, void* dst) {
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(src)));
    const __m512i twice =
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), _mm512_castsi256_si512(bytes));
    const __m512i shifts = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0, 0, 0, 4, 4, 4, 4));
    _mm512_storeu_si512(dst, _mm512_permutexvar_epi16(_mm512_srlv_epi16(twice, shifts), table));
  }

 private:
  static __m256i Halves(F a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};

}  // namespace
}  // namespace kvant::kernels
