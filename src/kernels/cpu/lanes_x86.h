#pragma once

#include <immintrin.h>

#include <cstdint>

// Reductions of one 128-bit register that AVX2 and AVX-512 share.
namespace kvant::kernels {
namespace {

// phminposuw finds the smallest unsigned 16-bit lane; flipping bits makes it serve signed minima and maxima.
inline int16_t SmallestInt16(__m128i a) {
  const __m128i flip = _mm_set1_epi16(INT16_MIN);
  return static_cast<int16_t>(_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(a, flip)), 0) ^ 0x8000);
}

inline int16_t LargestInt16(__m128i a) {
  const __m128i flip = _mm_set1_epi16(INT16_MAX);
  return static_cast<int16_t>(_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(a, flip)), 0) ^ 0x7FFF);
}

}  // namespace
}  // namespace kvant::kernels
