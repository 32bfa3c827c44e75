#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attend_common.h"
#include "kernels/cpu/lanes_avx512.h"

// pair_lanes_portable.h for AVX-512 with VNNI, and products of codes with 12-bit numbers.
//
// A dot product instruction multiplies unsigned bytes with signed ones. Codes need four bits, numbers twelve: two
// numbers a, b of two codes u, v become three signed bytes with
//   a·u + b·v = α·(16·u) + β·(15·v) + γ·(u + v),   a = 16·α + γ,  b = 15·β + γ,
// so that two codes take three products instead of the four of two limbs each. γ is found by what it must be modulo 16
// and 15, which have no common factor.
namespace kvant::kernels {
namespace {

struct PairLanesAvx512 {
  using V = LanesAvx512;
  static constexpr bool kTriples = true;
  static constexpr float kLargestTriple = 1785.0F;  ///< of a and b, so that α, β and γ fit

  static void ExpandKeys(const PairTask& task, PairMemory& pairs) {
    if (task.page_tokens >= kSpan) {
      ExpandPlanes<uint64_t>(task, pairs);
    } else {
      ExpandPlanes<uint32_t>(task, pairs);
    }
  }

  /// 64 channels a look-up; reads up to 126 bytes beyond the last.
  static void PlaceHalves(const PairTask& task, const std::byte* by_channel, float* by_place) {
    for (uint32_t place = 0; place < task.head_dim; place += 2 * V::kLanes) {
      const __m512i order = _mm512_loadu_si512(task.order + place);
      const __m512i sixty_fours = _mm512_srli_epi16(order, 6);
      __m512i halves = LookUp64(by_channel, order);
      for (uint32_t i = 1; i * 64 < task.head_dim; ++i) {
        const __mmask32 here = _mm512_cmpeq_epi16_mask(sixty_fours, _mm512_set1_epi16(static_cast<int16_t>(i)));
        halves = _mm512_mask_mov_epi16(halves, here, LookUp64(by_channel + i * 128, order));
      }
      _mm512_storeu_ps(by_place + place, _mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
      _mm512_storeu_ps(by_place + place + V::kLanes, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
    }
  }

  static void StoreOrdered(const V::F (&numbers)[4], float* dst) {
    const __m512 even01 = _mm512_shuffle_f32x4(numbers[0], numbers[1], 0x88);  // quarters 0 and 2 of both
    const __m512 odd01 = _mm512_shuffle_f32x4(numbers[0], numbers[1], 0xDD);
    const __m512 even23 = _mm512_shuffle_f32x4(numbers[2], numbers[3], 0x88);
    const __m512 odd23 = _mm512_shuffle_f32x4(numbers[2], numbers[3], 0xDD);
    _mm512_storeu_ps(dst, _mm512_shuffle_f32x4(even01, even23, 0x88));
    _mm512_storeu_ps(dst + 16, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
    _mm512_storeu_ps(dst + 32, _mm512_shuffle_f32x4(even01, even23, 0xDD));
    _mm512_storeu_ps(dst + 48, _mm512_shuffle_f32x4(odd01, odd23, 0xDD));
  }

  /// 16 numbers of each of four fields, to all fields of one and then of the next.
  static void Weave4(const float* fields, float* dst) {
    const auto load = [fields](int f) { return _mm512_castps_pd(_mm512_loadu_ps(fields + f * 16)); };
    const auto low = [](__m512d a, __m512d b) {
      return _mm512_castps_pd(_mm512_unpacklo_ps(_mm512_castpd_ps(a), _mm512_castpd_ps(b)));
    };
    const auto high = [](__m512d a, __m512d b) {
      return _mm512_castps_pd(_mm512_unpackhi_ps(_mm512_castpd_ps(a), _mm512_castpd_ps(b)));
    };
    const __m512d low01 = low(load(0), load(1));
    const __m512d high01 = high(load(0), load(1));
    const __m512d low23 = low(load(2), load(3));
    const __m512d high23 = high(load(2), load(3));
    const V::F fours[4] = {
        _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23)), _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23)), _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23))};
    StoreOrdered(fours, dst);
  }

  static void JoinRows(const std::byte* rows, size_t row_bytes, uint32_t blocks, uint8_t (*units)[64]) {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    if (row_bytes == 32) {  // four rows are two registers
      const __m512i first = _mm512_loadu_si512(rows);
      const __m512i second = _mm512_loadu_si512(rows + 64);
      const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
      const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
      _mm512_store_si512(units[0], _mm512_shuffle_epi8(_mm512_permutex2var_epi32(first, low, second), bytes));
      _mm512_store_si512(units[1], _mm512_shuffle_epi8(_mm512_permutex2var_epi32(first, high, second), bytes));
      return;
    }
    const __m512i columns = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (uint32_t b = 0; b < blocks; ++b) {
      const auto row = [&](size_t t) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + t * row_bytes + size_t{b} * 16));
      };
      __m512i square = _mm512_castsi128_si512(row(0));
      square = _mm512_inserti32x4(square, row(1), 1);
      square = _mm512_inserti32x4(square, row(2), 2);
      square = _mm512_inserti32x4(square, row(3), 3);
      _mm512_store_si512(units[b], _mm512_shuffle_epi8(_mm512_permutexvar_epi32(columns, square), bytes));
    }
  }

  /// 64 numbers, rounded, as 32 words at `x`. In lanes 4L to 4L + 3, the numbers of v0 and v1, and those of v2 and v3,
  /// are pairs a, b. Word 4L + e has four α, 4L + e + 2 four β, 16 + 4L + e four γ; e = 0 of v0 and v1, 1 of the
  /// others.
  static void StoreTriples(const __m512i (&v)[4], int32_t* x) {
    const __m512i a = _mm512_packs_epi32(v[0], v[2]);
    const __m512i b = _mm512_packs_epi32(v[1], v[3]);
    const __m512i quotient =
        _mm512_mulhrs_epi16(b, _mm512_set1_epi16(2185));  // b / 15, to nearest: 32768 / 15 = 2184.5
    const __m512i rest = _mm512_add_epi16(_mm512_sub_epi16(b, _mm512_slli_epi16(quotient, 4)), quotient);
    // γ = rest + 15·steps has the right remainder by 15 for any number of steps, and by 16 for one from -8 to 7.
    const __m512i eight = _mm512_set1_epi16(8);
    const __m512i raised = _mm512_and_si512(_mm512_add_epi16(_mm512_sub_epi16(rest, a), eight), _mm512_set1_epi16(15));
    const __m512i steps = _mm512_sub_epi16(raised, eight);
    const __m512i gamma = _mm512_add_epi16(_mm512_sub_epi16(rest, steps), _mm512_slli_epi16(steps, 4));
    const __m512i alpha = _mm512_srai_epi16(_mm512_sub_epi16(a, gamma), 4);
    const __m512i beta = _mm512_sub_epi16(quotient, steps);
    _mm512_storeu_si512(x, _mm512_packs_epi16(alpha, beta));
    _mm512_storeu_si512(x + 16, _mm512_packs_epi16(gamma, gamma));
  }

  /// What α, β and γ meet: units of codes u and v.
  struct Triple {
    __m512i first;
    __m512i second;
    __m512i both;
  };
  static Triple Spread(__m512i u, __m512i v) {
    return {_mm512_slli_epi16(u, 4), _mm512_sub_epi8(_mm512_slli_epi16(v, 4), v), _mm512_add_epi8(u, v)};
  }
  static __m512i Dot(__m512i acc, __m512i codes, int32_t x) {
    return _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x));
  }
  static __m512i Times(__m512i a, int32_t x) { return _mm512_mullo_epi32(a, _mm512_set1_epi32(x)); }
  template <int kShift, int kMask>
  static __m512i Field(__m512i bytes) {
    const __m512i mask = _mm512_set1_epi8(kMask);
    return _mm512_and_si512(kShift == 0 ? bytes : _mm512_srli_epi16(bytes, kShift), mask);
  }

  /// 2^x for x <= 0 to 3e-6 relative, nearly 0 where x < -100: what is cut to 11 bits needs no more.
  static __m512 Exp2(__m512 x) {
    const __m512 magic = _mm512_set1_ps(12582912.0F);  // 1.5 · 2^23: added to a number, leaves its nearest integer low
    const __m512 least = _mm512_max_ps(x, _mm512_set1_ps(-100.0F));
    const __m512 shifted = _mm512_add_ps(least, magic);
    const __m512 r = _mm512_sub_ps(least, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.00958285F), _mm512_set1_ps(0.05590643F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24024099F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69312419F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
    const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
  }

 private:
  static __m512i LookUp64(const std::byte* halves, __m512i places) {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(halves), places, _mm512_loadu_si512(halves + 64));
  }

  static constexpr uint32_t kSpan = 4 * V::kLanes;

  template <class Word>
  static __mmask64 Mask(const std::byte* plane) {
    Word word;
    std::memcpy(&word, plane, sizeof word);
    return word;
  }

  /// Of 64 tokens, a byte each.
  template <class Word>
  static __m512i Codes(const std::byte* first, size_t plane_bytes, const uint16_t* planes, uint32_t width) {
    const auto bit = [width](uint32_t j) {
      return _mm512_set1_epi8(static_cast<char>(1U << (kMaxKeyBits + j - width)));
    };
    __m512i codes = _mm512_maskz_mov_epi8(Mask<Word>(first + planes[0] * plane_bytes), bit(0));
    for (uint32_t j = 1; j < width; ++j) {
      codes = _mm512_mask_add_epi8(codes, Mask<Word>(first + planes[j] * plane_bytes), codes, bit(j));
    }
    return codes;
  }

  /// Four places at a time from `place` on, of one width, or (0) each of its own, up to `end`.
  template <class Word, uint32_t kWidth>
  static const uint16_t* ExpandRun(const PairTask& task, const uint16_t* planes, uint32_t place, uint32_t end,
                                   PairMemory& pairs) {
    const size_t plane_bytes = task.page_tokens / 8;
    for (; place < end; place += 4) {
      const uint8_t* widths = task.widths + place;
      const uint16_t* at = planes;
      for (uint32_t first = 0; first < task.page_tokens; first += kSpan) {
        at = planes;
        __m512i codes[4];
        KVANT_UNROLL
        for (int i = 0; i < 4; ++i) {
          const uint32_t width = kWidth > 0 ? kWidth : widths[i];
          codes[i] = Codes<Word>(task.page + first / 8, plane_bytes, at, width);
          at += width;
        }
        StoreUnits(codes, pairs.keys[place / 4][first]);
      }
      planes = at;
    }
    return planes;
  }

  static void StoreUnits(const __m512i (&codes)[4], uint8_t* units) {
    const __m512i low01 = _mm512_unpacklo_epi8(codes[0], codes[1]);
    const __m512i high01 = _mm512_unpackhi_epi8(codes[0], codes[1]);
    const __m512i low23 = _mm512_unpacklo_epi8(codes[2], codes[3]);
    const __m512i high23 = _mm512_unpackhi_epi8(codes[2], codes[3]);
    _mm512_store_si512(units, _mm512_unpacklo_epi16(low01, low23));
    _mm512_store_si512(units + 64, _mm512_unpackhi_epi16(low01, low23));
    _mm512_store_si512(units + 128, _mm512_unpacklo_epi16(high01, high23));
    _mm512_store_si512(units + 192, _mm512_unpackhi_epi16(high01, high23));
  }

  template <class Word>
  static void ExpandPlanes(const PairTask& task, PairMemory& pairs) {
    const uint16_t* planes = task.planes;
    for (uint32_t place = 0; place < task.head_dim;) {
      const uint8_t width = task.widths[place];
      uint32_t end = place;
      while (end < task.head_dim && task.widths[end + 3] == width) {  // widths fall
        end += 4;
      }
      const auto expand = end == place ? ExpandRun<Word, 0>
                          : width == 1 ? ExpandRun<Word, 1>
                          : width == 2 ? ExpandRun<Word, 2>
                          : width == 3 ? ExpandRun<Word, 3>
                                       : ExpandRun<Word, 4>;
      end = end == place ? place + 4 : end;
      planes = expand(task, planes, place, end, pairs);
      place = end;
    }
  }
};

}  // namespace
}  // namespace kvant::kernels
