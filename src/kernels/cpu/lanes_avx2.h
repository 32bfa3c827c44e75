#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/lanes_x86.h"

// lanes_portable.h for AVX2 with FMA and F16C: half a tile of tokens a register.
namespace kvant::kernels {
namespace {

struct LanesAvx2 {
  static constexpr uint32_t kLanes = 8;
  static constexpr uint32_t kMaxRows = 4;
  using F = __m256;
  using I = __m256i;
  using H = __m256i;  ///< 2·kLanes halves, as bits
  using B = __m256i;  ///< 4·kLanes bytes

  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* src) { return _mm256_loadu_ps(src); }
  static F LoadHalf(const void* src) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(src))); }
  static F SetHalf(uint16_t bits) { return Set(_cvtsh_ss(bits)); }
  static void Store(float* dst, F a) { _mm256_storeu_ps(dst, a); }
  static void StoreHalf(void* dst, F a) { _mm_storeu_si128(static_cast<__m128i*>(dst), Halves(a)); }
  static bool StoreHalfIfFinite(void* dst, F a) {
    const __m128i halves = Halves(a);
    _mm_storeu_si128(static_cast<__m128i*>(dst), halves);
    const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7FFF));
    return _mm_movemask_epi8(_mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7BFF))) == 0;
  }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
  static float Sum(F a) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static float Largest(F a) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }
  static F ZeroBelow(F a, F x, float limit) {
    return _mm256_and_ps(a, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ));
  }
  static F Fraction(F x) { return Sub(x, _mm256_floor_ps(x)); }
  static F ScaleByFloor(F a, F x, float limit) {
    const __m256i n = _mm256_cvtps_epi32(_mm256_floor_ps(x));
    const __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(n, 23));
    return ZeroBelow(_mm256_castsi256_ps(scaled), x, limit);
  }

  static I Round(F a) { return _mm256_cvtps_epi32(a); }
  static I Truncate(F a) { return _mm256_cvttps_epi32(a); }
  static F ToFloats(I a) { return _mm256_cvtepi32_ps(a); }
  static I SetInt(int32_t x) { return _mm256_set1_epi32(x); }
  static I LoadInt(const void* src) { return _mm256_loadu_si256(static_cast<const __m256i*>(src)); }
  static I AddInt(I a, I b) { return _mm256_add_epi32(a, b); }
  static int32_t SumInt(I a) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i pair = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, _MM_SHUFFLE(2, 3, 0, 1))));
  }
  static I And(I a, I b) { return _mm256_and_si256(a, b); }
  template <int kCount>
  static I ShiftRight16(I a) {
    return _mm256_srli_epi16(a, kCount);
  }
  /// Keeps a sum in its register: rows are then met one after the other, where GCC mixes them and runs out.
  static void Pin(I& a) { asm volatile("" : "+x"(a)); }
  static I DotPairs(I acc, I a, I b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
  static void StorePaired(void* dst, I a) {
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i low = _mm_shufflelo_epi16(packed, _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128(static_cast<__m128i*>(dst), _mm_shufflehi_epi16(low, _MM_SHUFFLE(3, 1, 2, 0)));
  }

  static H LoadHalfBits(const void* src) { return LoadInt(src); }
  static void StoreHalfBits(void* dst, H a) { _mm256_storeu_si256(static_cast<__m256i*>(dst), a); }
  static H HalfMagnitude(H a) { return _mm256_and_si256(a, _mm256_set1_epi16(0x7FFF)); }
  static H Sortable(H a) {
    return _mm256_xor_si256(a, _mm256_and_si256(_mm256_srai_epi16(a, 15), _mm256_set1_epi16(0x7FFF)));
  }
  static H MaxHalfBits(H a, H b) { return _mm256_max_epi16(a, b); }
  static H MinHalfBits(H a, H b) { return _mm256_min_epi16(a, b); }
  static int16_t LargestHalfBits(H a) {
    return LargestInt16(_mm_max_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
  }
  static int16_t SmallestHalfBits(H a) {
    return SmallestInt16(_mm_min_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
  }

  static B Narrow(I a, I b, I c, I d) {
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static B NarrowUnsigned(I a, I b, I c, I d) {
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static B ClampBytes(B a, int8_t low, int8_t high) {
    return _mm256_min_epi8(_mm256_max_epi8(a, _mm256_set1_epi8(low)), _mm256_set1_epi8(high));
  }
  static B AddBytes(B a, uint8_t b) { return _mm256_add_epi8(a, _mm256_set1_epi8(static_cast<char>(b))); }
  static void StoreBytes(void* dst, B a) { _mm256_storeu_si256(static_cast<__m256i*>(dst), a); }
  static void StoreNibbles(void* dst, B a) {
    const __m256i joined = _mm256_or_si256(a, _mm256_srli_epi64(a, 28));
    const __m256i packed = _mm256_permutevar8x32_epi32(joined, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    _mm_storeu_si128(static_cast<__m128i*>(dst), _mm256_castsi256_si128(packed));
  }
  static I LoadBytes(const void* src) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(src)));
  }
  /// Low and high bytes of 16 halves, each in both 128-bit parts.
  struct Table {
    __m256i low;
    __m256i high;
  };
  static Table LoadTable(const uint16_t* halves) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + 8));
    const __m128i mask = _mm_set1_epi16(0xFF);
    const __m128i low = _mm_packus_epi16(_mm_and_si128(first, mask), _mm_and_si128(second, mask));
    const __m128i high = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
    return {_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)};
  }
  static void LookUpNibbles(const void* src, Table table, void* dst) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(src));
    const __m128i mask = _mm_set1_epi8(0xF);
    const __m128i first = _mm_and_si128(bytes, mask);
    const __m128i second = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
    const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi32(first, second), _mm_unpacklo_epi32(first, second));
    const __m256i low = _mm256_shuffle_epi8(table.low, codes);
    const __m256i high = _mm256_shuffle_epi8(table.high, codes);
    const __m256i even = _mm256_unpacklo_epi8(low, high);  // elements 0-7 and 16-23
    const __m256i odd = _mm256_unpackhi_epi8(low, high);   // elements 8-15 and 24-31
    auto* out = static_cast<__m256i*>(dst);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }

 private:
  static __m128i Halves(F a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};

}  // namespace
}  // namespace kvant::kernels
