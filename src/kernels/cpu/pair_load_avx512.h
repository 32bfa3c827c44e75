#pragma once

#include "kernels/cpu/pair_common_avx512.h"
#include "kernels/cpu/pair_parts.h"

// A page of pair-mixed codes into the nearest cache: rows of bits as indexes, scales and zeros in the order they are
// met.
namespace kvant::kernels {
namespace {

/// 64 channels a look-up; reads up to 126 bytes beyond the last.
inline __m512i LookUpHalves(const std::byte* halves, __m512i places) {
  return _mm512_permutex2var_epi16(_mm512_loadu_si512(halves), places, _mm512_loadu_si512(halves + 64));
}

inline void PlaceHalves(const PairTask& task, const std::byte* by_channel, float* by_place) {
  for (uint32_t place = 0; place < task.head_dim; place += 2 * V::kLanes) {
    const __m512i order = _mm512_loadu_si512(task.order + place);
    const __m512i sixty_fours = _mm512_srli_epi16(order, 6);
    __m512i halves = LookUpHalves(by_channel, order);
    for (uint32_t i = 1; i * 64 < task.head_dim; ++i) {
      const __mmask32 here = _mm512_cmpeq_epi16_mask(sixty_fours, _mm512_set1_epi16(static_cast<int16_t>(i)));
      halves = _mm512_mask_mov_epi16(halves, here, LookUpHalves(by_channel + i * 128, order));
    }
    V::Store(by_place + place, _mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
    V::Store(by_place + place + V::kLanes, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
  }
}

constexpr std::byte kNoBits[16] = {};  ///< of places that have no such plane

inline void LoadKeys(const PairTask& task, PairMemory& pairs) {
  const auto plane_shift = static_cast<uint32_t>(__builtin_ctz(task.page_tokens / 8));  // multiplications would bind
  const bool two_halves = Halves(task) == 2;
  const uint16_t* six = task.sixes;
  uint8_t* to = pairs.indexes.keys;
  for (uint32_t place = 0; place < task.head_dim; place += kSix) {
    for (uint32_t level = 0; level < task.widths[place]; ++level, six += kSix) {
      const std::byte* rows[kSix];
      KVANT_UNROLL
      for (uint32_t i = 0; i < kSix; ++i) {
        rows[i] = six[i] == PairTask::kNoPlane ? kNoBits : task.page + (size_t{six[i]} << plane_shift);
      }
      __m512i indexes[2];
      MakeIndexes(rows, 0, indexes);
      _mm512_store_si512(to, indexes[0]);
      if (two_halves) {
        _mm512_store_si512(to + kBlockColumns, indexes[1]);
        to += kBlockColumns;
      }
      to += kBlockColumns;
    }
  }
}

inline void LoadValues(const PairTask& task, PairMemory& pairs) {
  const uint32_t row_bytes = ValueRowBytes(task);
  const std::byte* codes = task.page + task.value_codes;
  uint8_t* to = pairs.indexes.values;
  uint32_t offsets[kMaxTokenSixes * kSix];
  for (uint32_t i = 0; i < kMaxTokenSixes * kSix; ++i) {
    const uint32_t token = kWordOrder.token[i];  // where there is none, its weight is 0
    offsets[i] = (token < task.page_tokens ? token : 0) * row_bytes;
  }
  for (uint32_t first = 0; first < Positions(task); first += kSix) {
    const std::byte* rows[kSix];
    KVANT_UNROLL
    for (uint32_t i = 0; i < kSix; ++i) {
      rows[i] = codes + offsets[first + i];
    }
    for (uint32_t at = 0; at < row_bytes; at += 16, to += 128) {
      __m512i indexes[2];
      MakeIndexes(rows, at, indexes);
      _mm512_store_si512(to, indexes[0]);
      _mm512_store_si512(to + kBlockColumns, indexes[1]);
    }
  }
}

/// Numbers of tokens in the order of logits.
inline void StoreOrdered(const PairTask& task, const Half* params, float* dst) {
  const __m512i fours = _mm512_add_epi16(_mm512_set_epi16(61, 57, 53, 49, 45, 41, 37, 33, 29, 25, 21, 17, 13, 9, 5, 1,
                                                          60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0),
                                         _mm512_setzero_si512());
  const __m512i next = _mm512_add_epi16(fours, _mm512_set1_epi16(2));
  for (uint32_t first = 0; first < Positions(task); first += kBlockColumns) {
    const __m512i low = _mm512_loadu_si512(params + first);
    const __m512i high = _mm512_loadu_si512(params + first + 32);
    for (const __m512i& order : {fours, next}) {
      const __m512i halves = _mm512_permutex2var_epi16(low, order, high);
      V::Store(dst, _mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
      V::Store(dst + V::kLanes, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
      dst += 2 * V::kLanes;
    }
  }
}

/// 32 numbers as words.
inline __m512i Words(__m512i low, __m512i high) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(low, high));
}

/// What is cut off of q times a scale is to meet codes around 0 only: zeros are moved to the middle of the codes.
inline void CentreKeys(const PairTask& task, PairMemory& pairs) {
  constexpr float kTwice = 2.0F;  // middles are halves
  for (uint32_t c = 0; c < task.head_dim; c += 2 * V::kLanes) {
    __m512i twice[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (uint32_t k = 0; k < 2 && c + k * V::kLanes < task.head_dim; ++k) {
      const uint32_t at = c + k * V::kLanes;
      const auto middle = V::Load(task.middles + at);
      twice[k] = V::Round(V::Mul(middle, V::Set(kTwice)));
      V::Store(pairs.key_zero + at, V::Fma(V::Load(pairs.key_scale + at), middle, V::Load(pairs.key_zero + at)));
    }
    _mm512_store_si512(pairs.key_middle + c, Words(twice[0], twice[1]));
  }
}

inline void LoadPairPage(const PairTask& task, PairMemory& pairs, StretchMemory& /*memory*/) {
  LoadKeys(task, pairs);
  LoadKeyParams<V>(task, PlaceHalves, pairs);
  CentreKeys(task, pairs);
  LoadValues(task, pairs);
  alignas(64) Half copy[kStretchTokens];
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    StoreOrdered(task, TokenParams(task, task.value_scales, g, copy), pairs.value_scale[g]);
    StoreOrdered(task, TokenParams(task, task.value_zeros, g, copy), pairs.value_zero[g]);
  }
}

}  // namespace
}  // namespace kvant::kernels
