#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attend_common.h"
#include "kernels/cpu/lanes_avx2.h"

// pair_lanes_portable.h for AVX2.
namespace kvant::kernels {
namespace {

struct PairLanesAvx2 {
  using V = LanesAvx2;

  static void ExpandKeys(const PairTask& task, PairMemory& pairs) {
    const uint16_t* planes = task.planes;
    for (uint32_t place = 0; place < task.head_dim;) {
      const uint8_t width = task.widths[place];
      uint32_t end = place;
      while (end < task.head_dim && task.widths[end + 3] == width) {  // widths fall
        end += 4;
      }
      const auto expand = end == place ? ExpandRun<0>
                          : width == 1 ? ExpandRun<1>
                          : width == 2 ? ExpandRun<2>
                          : width == 3 ? ExpandRun<3>
                                       : ExpandRun<4>;
      end = end == place ? place + 4 : end;
      planes = expand(task, planes, place, end, pairs);
      place = end;
    }
  }

  static void PlaceHalves(const PairTask& task, const std::byte* by_channel, float* by_place) {
    alignas(32) float numbers[codec::kMaxHeadDim];
    for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
      V::Store(numbers + c, V::LoadHalf(by_channel + c * sizeof(Half)));
    }
    for (uint32_t place = 0; place < task.head_dim; ++place) {
      by_place[place] = numbers[task.order[place]];
    }
  }

  static void StoreOrdered(const V::F (&numbers)[4], float* dst) {
    V::Store(dst, _mm256_permute2f128_ps(numbers[0], numbers[2], 0x20));
    V::Store(dst + 8, _mm256_permute2f128_ps(numbers[0], numbers[2], 0x31));
    V::Store(dst + 16, _mm256_permute2f128_ps(numbers[1], numbers[3], 0x20));
    V::Store(dst + 24, _mm256_permute2f128_ps(numbers[1], numbers[3], 0x31));
  }

  static void JoinRows(const std::byte* rows, size_t row_bytes, uint32_t blocks, uint8_t (*units)[64]) {
    for (uint32_t b = 0; b < blocks; ++b) {
      __m128i row[4];
      KVANT_UNROLL
      for (int t = 0; t < 4; ++t) {
        row[t] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + t * row_bytes + size_t{b} * 16));
      }
      const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]);
      const __m128i high01 = _mm_unpackhi_epi8(row[0], row[1]);
      const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]);
      const __m128i high23 = _mm_unpackhi_epi8(row[2], row[3]);
      auto* out = reinterpret_cast<__m128i*>(units[b]);
      _mm_storeu_si128(out, _mm_unpacklo_epi16(low01, low23));
      _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low01, low23));
      _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high01, high23));
      _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high01, high23));
    }
  }

 private:
  /// Of 32 tokens, a byte each. Compared with its own bit, a byte of the plane becomes all ones where the bit is set.
  [[gnu::always_inline]] static __m256i Codes(const std::byte* first, size_t plane_bytes, const uint16_t* planes,
                                              uint32_t width) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    __m256i codes = _mm256_setzero_si256();
    KVANT_UNROLL
    for (uint32_t j = 0; j < width; ++j) {
      int32_t word;
      std::memcpy(&word, first + planes[j] * plane_bytes, sizeof word);
      const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
      codes = _mm256_or_si256(
          codes, _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1U << (kMaxKeyBits + j - width)))));
    }
    return codes;
  }

  /// Four places at a time from `place` on, of one width, or (0) each of its own, up to `end`.
  template <uint32_t kWidth>
  static const uint16_t* ExpandRun(const PairTask& task, const uint16_t* planes, uint32_t place, uint32_t end,
                                   PairMemory& pairs) {
    constexpr uint32_t kSpan = 4 * V::kLanes;
    const size_t plane_bytes = task.page_tokens / 8;
    for (; place < end; place += 4) {
      const uint16_t* at = planes;
      for (uint32_t first = 0; first < task.page_tokens; first += kSpan) {
        at = planes;
        __m256i codes[4];
        KVANT_UNROLL
        for (int i = 0; i < 4; ++i) {
          const uint32_t width = kWidth > 0 ? kWidth : task.widths[place + i];
          codes[i] = Codes(task.page + first / 8, plane_bytes, at, width);
          at += width;
        }
        StoreUnits(codes, pairs.units.keys[place / 4][first]);
      }
      planes = at;
    }
    return planes;
  }

  static void StoreUnits(const __m256i (&codes)[4], uint8_t* units) {
    const __m256i low01 = _mm256_unpacklo_epi8(codes[0], codes[1]);
    const __m256i high01 = _mm256_unpackhi_epi8(codes[0], codes[1]);
    const __m256i low23 = _mm256_unpacklo_epi8(codes[2], codes[3]);
    const __m256i high23 = _mm256_unpackhi_epi8(codes[2], codes[3]);
    auto* out = reinterpret_cast<__m256i*>(units);
    _mm256_storeu_si256(out, _mm256_unpacklo_epi16(low01, low23));
    _mm256_storeu_si256(out + 1, _mm256_unpackhi_epi16(low01, low23));
    _mm256_storeu_si256(out + 2, _mm256_unpacklo_epi16(high01, high23));
    _mm256_storeu_si256(out + 3, _mm256_unpackhi_epi16(high01, high23));
  }
};

}  // namespace
}  // namespace kvant::kernels
