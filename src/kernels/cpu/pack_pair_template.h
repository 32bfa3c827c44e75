#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attend_common.h"
#include "kernels/cpu/pack_pair_kernels.h"
#include "kernels/cpu/rotate_values.h"

// Rows of fp16 into one page of pair-mixed codes: the bytes of codec::EncodePairPageRef and SerializePairPage. V is one
// of the Lanes structs for x86. Keys: lanes are channels; what eight tokens leave in a byte a channel is turned around
// at the end. Values: a token's groups are fitted for all tokens at once.
namespace kvant::kernels {
namespace {

constexpr uint32_t kMaxTokens = kStretchTokens;

/// How the elements of each channel become codes: (x - zero) · inverse + half, at most `last`, then the nearest or the
/// lower integer. What is negative becomes 0 when codes are made bytes.
struct PackChannels {
  alignas(64) float zero[codec::kMaxHeadDim];
  alignas(64) float inverse[codec::kMaxHeadDim];
  alignas(64) float half[codec::kMaxHeadDim];
  alignas(64) float last[codec::kMaxHeadDim];
  alignas(64) float divisor[codec::kMaxHeadDim];
  alignas(64) int32_t nearest[codec::kMaxHeadDim];  ///< all ones where codes are rounded to nearest
  alignas(64) int32_t lower[codec::kMaxHeadDim];
};

/// Scale and zero of lanes of groups as they are stored, and the reciprocal that codes are made with.
template <class V>
struct Fitted {
  typename V::F zero;
  typename V::F inverse;
};
template <class V>
Fitted<V> Fit(bool mid_rise, typename V::F low, typename V::F high, typename V::F divisor, Half* scales, Half* zeros) {
  const auto nothing = V::Set(0.0F);
  const auto from = mid_rise ? low : V::Add(low, nothing);  // never -0
  const auto quotient = V::Add(V::Div(V::Max(nothing, V::Sub(high, from)), divisor), nothing);
  V::StoreHalf(scales, quotient);
  const auto scale = V::LoadHalf(scales);
  V::StoreHalf(zeros, mid_rise ? V::Add(low, V::Mul(V::Set(0.5F), scale)) : from);
  constexpr float kBelowSmallest = 0x1p-25F;
  return {V::LoadHalf(zeros), V::ZeroBelow(V::Div(V::Set(1.0F), scale), scale, kBelowSmallest)};
}

/// Smallest and largest key of each channel, as halves. Rows in their order in memory, up to four registers abreast.
template <class V, uint32_t kVectors>
void FindRangesOf(const PackTask& task, uint32_t c, uint16_t* lows, uint16_t* highs) {
  constexpr uint32_t kStep = 2 * V::kLanes;
  typename V::H low[kVectors];
  typename V::H high[kVectors];
  KVANT_UNROLL
  for (uint32_t i = 0; i < kVectors; ++i) {
    low[i] = high[i] = V::Sortable(V::LoadHalfBits(task.keys + c + i * kStep));
  }
  for (uint32_t t = 1; t < task.page_tokens; ++t) {
    const Half* row = task.keys + t * task.stride + c;
    KVANT_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i) {
      const auto x = V::Sortable(V::LoadHalfBits(row + i * kStep));
      low[i] = V::MinHalfBits(low[i], x);
      high[i] = V::MaxHalfBits(high[i], x);
    }
  }
  KVANT_UNROLL
  for (uint32_t i = 0; i < kVectors; ++i) {
    V::StoreHalfBits(lows + c + i * kStep, V::Sortable(low[i]));
    V::StoreHalfBits(highs + c + i * kStep, V::Sortable(high[i]));
  }
}

template <class V>
void FindKeyRanges(const PackTask& task, uint16_t* lows, uint16_t* highs) {
  constexpr uint32_t kStep = 2 * V::kLanes;
  uint32_t c = 0;
  for (; c + 4 * kStep <= task.head_dim; c += 4 * kStep) {
    FindRangesOf<V, 4>(task, c, lows, highs);
  }
  for (; c + kStep <= task.head_dim; c += kStep) {
    FindRangesOf<V, 1>(task, c, lows, highs);
  }
  if (c < task.head_dim) {
    FindRangesOf<V, 1>(task, task.head_dim - kStep, lows, highs);
  }
}

inline void SetChannels(const PackTask& task, PackChannels& channels) {
  for (uint32_t place = 0; place < task.head_dim; ++place) {
    const uint32_t c = task.order[place];
    const auto levels = static_cast<float>(1U << task.widths[place]);
    const bool mid_rise = task.mid_rise_keys || task.widths[place] == 1;
    channels.last[c] = levels - 1.0F;
    channels.divisor[c] = mid_rise ? levels : levels - 1.0F;
    channels.half[c] = mid_rise ? 0.5F : 0.0F;
    channels.nearest[c] = mid_rise ? 0 : -1;
    channels.lower[c] = mid_rise ? -1 : 0;
  }
}

template <class V>
void FitKeys(const PackTask& task, PackChannels& channels) {
  alignas(64) uint16_t lows[codec::kMaxHeadDim];
  alignas(64) uint16_t highs[codec::kMaxHeadDim];
  FindKeyRanges<V>(task, lows, highs);
  SetChannels(task, channels);
  auto* scales = reinterpret_cast<Half*>(task.page + task.key_scales);
  auto* zeros = reinterpret_cast<Half*>(task.page + task.key_zeros);
  for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
    const auto low = V::LoadHalf(lows + c);
    const auto high = V::LoadHalf(highs + c);
    const auto divisor = V::Load(channels.divisor + c);
    // Lanes may be of both rules: the other one's first, then what belongs to it stays.
    alignas(64) Half other[2][V::kLanes];
    alignas(64) float zero[V::kLanes];
    alignas(64) float inverse[V::kLanes];
    const Fitted<V> fitted = Fit<V>(true, low, high, divisor, scales + c, zeros + c);
    V::Store(channels.zero + c, fitted.zero);
    V::Store(channels.inverse + c, fitted.inverse);
    const Fitted<V> min_max = Fit<V>(false, low, high, divisor, other[0], other[1]);
    V::Store(zero, min_max.zero);
    V::Store(inverse, min_max.inverse);
    for (uint32_t i = 0; i < V::kLanes; ++i) {
      if (channels.nearest[c + i] != 0) {
        scales[c + i] = other[0][i];
        zeros[c + i] = other[1][i];
        channels.zero[c + i] = zero[i];
        channels.inverse[c + i] = inverse[i];
      }
    }
  }
}

/// Planes of eight tokens, a byte a channel, by plane, byte of a plane and channel.
using PlaneBytes = uint8_t[kMaxKeyBits][kMaxTokens / 8][codec::kMaxHeadDim];

/// Rules that a page's keys have.
enum class KeyRules : uint8_t { kMinMax, kMidRise, kBoth };

template <class V, KeyRules kRules>
[[gnu::always_inline]] inline typename V::I KeyCodes(const PackChannels& channels, uint32_t c, const Half* keys) {
  auto level = V::Mul(V::Sub(V::LoadHalf(keys), V::Load(channels.zero + c)), V::Load(channels.inverse + c));
  const auto last = V::Load(channels.last + c);
  if constexpr (kRules == KeyRules::kMinMax) {
    return V::Round(V::Min(level, last));
  } else if constexpr (kRules == KeyRules::kMidRise) {
    return V::Truncate(V::Min(V::Add(level, V::Set(0.5F)), last));
  } else {
    level = V::Min(V::Add(level, V::Load(channels.half + c)), last);
    return V::AddInt(V::And(V::Round(level), V::LoadInt(channels.nearest + c)),
                     V::And(V::Truncate(level), V::LoadInt(channels.lower + c)));
  }
}

/// 4·kLanes channels from c on. Bits come in from the last token to the first: each moves the later ones up.
template <class V, uint32_t kPlanes, KeyRules kRules>
void EncodeKeyChannels(const PackTask& task, const PackChannels& channels, uint32_t c, PlaneBytes& planes) {
  using B = typename V::B;
  const auto ones = V::SetInt(0x01010101);
  for (uint32_t byte = 0; byte < task.page_tokens / 8; ++byte) {
    B bits[kPlanes];
    KVANT_UNROLL
    for (uint32_t j = 0; j < kPlanes; ++j) {
      bits[j] = V::SetInt(0);
    }
    for (uint32_t t = byte * 8 + 8; t-- > byte * 8;) {
      const Half* row = task.keys + t * task.stride;
      for (uint32_t i = 0; i < 4 * V::kLanes; i += 32) {
        Prefetch(task.values + t * task.stride + c + i);  // they are next
      }
      typename V::I codes[4];
      KVANT_UNROLL
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t at = c + k * V::kLanes;
        codes[k] = V::SetInt(0);
        if (at < task.head_dim) {
          codes[k] = KeyCodes<V, kRules>(channels, at, row + at);
        }
      }
      const B code = V::NarrowUnsigned(codes[0], codes[1], codes[2], codes[3]);
      const auto add = [&](uint32_t plane, B bit) {
        bits[plane] = V::AddInt(V::AddInt(bits[plane], bits[plane]), V::And(bit, ones));
      };
      add(0, code);
      if constexpr (kPlanes > 1) add(1, V::template ShiftRight16<1>(code));
      if constexpr (kPlanes > 2) add(2, V::template ShiftRight16<2>(code));
      if constexpr (kPlanes > 3) add(3, V::template ShiftRight16<3>(code));
    }
    KVANT_UNROLL
    for (uint32_t j = 0; j < kPlanes; ++j) {
      V::StoreBytes(planes[j][byte] + c, bits[j]);
    }
  }
}

/// A square of 16 x 16 bytes, turned around its diagonal.
inline void Transpose16(const uint8_t* src, size_t stride, uint8_t* dst) {
  __m128i a[16];
  __m128i b[16];
  KVANT_UNROLL
  for (int i = 0; i < 16; ++i) {
    a[i] = _mm_load_si128(reinterpret_cast<const __m128i*>(src + i * stride));
  }
  // Rows i and i + 8 interleaved four times: every element's row number moves into its column number.
  KVANT_UNROLL
  for (int step = 0; step < 2; ++step) {
    KVANT_UNROLL
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
      b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
    }
    KVANT_UNROLL
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = _mm_unpacklo_epi8(b[i], b[i + 8]);
      a[2 * i + 1] = _mm_unpackhi_epi8(b[i], b[i + 8]);
    }
  }
  KVANT_UNROLL
  for (int i = 0; i < 16; ++i) {
    _mm_store_si128(reinterpret_cast<__m128i*>(dst + i * 16), a[i]);
  }
}

inline void StorePlanes(const PackTask& task, uint32_t num_planes, const PlaneBytes& planes) {
  alignas(64) uint8_t by_channel[kMaxKeyBits][codec::kMaxHeadDim][16];
  for (uint32_t j = 0; j < num_planes; ++j) {
    for (uint32_t c = 0; c < task.head_dim; c += 16) {
      Transpose16(&planes[j][0][c], codec::kMaxHeadDim, by_channel[j][c]);
    }
  }
  const size_t plane_bytes = task.page_tokens / 8;
  const uint16_t* plane = task.planes;
  for (uint32_t place = 0; place < task.head_dim; ++place) {
    for (uint32_t j = 0; j < task.widths[place]; ++j) {
      std::byte* dst = task.page + *plane++ * plane_bytes;
      const uint8_t* src = by_channel[j][task.order[place]];
      if (plane_bytes == 16) {
        __builtin_memcpy(dst, src, 16);
      } else {
        __builtin_memcpy(dst, src, plane_bytes);
      }
    }
  }
}

template <class V>
void PackKeys(const PackTask& task) {
  PackChannels channels;
  FitKeys<V>(task, channels);
  alignas(64) PlaneBytes planes;
  const uint32_t num_planes = task.widths[0];
  const bool one_bit = task.widths[task.head_dim - 1] == 1;
  WithCount<kMaxKeyBits>(num_planes, [&](auto count) {
    constexpr uint32_t kPlanes = decltype(count)::value;
    const auto encode = task.mid_rise_keys || num_planes == 1 ? EncodeKeyChannels<V, kPlanes, KeyRules::kMidRise>
                        : one_bit                             ? EncodeKeyChannels<V, kPlanes, KeyRules::kBoth>
                                                              : EncodeKeyChannels<V, kPlanes, KeyRules::kMinMax>;
    for (uint32_t c = 0; c < task.head_dim; c += 4 * V::kLanes) {
      encode(task, channels, c, planes);
    }
  });
  StorePlanes(task, num_planes, planes);
}

/// Smallest and largest value of every token's groups.
template <class V>
void FindValueRanges(const PackTask& task, float* lows, float* highs) {
  for (uint32_t t = 0; t < task.page_tokens; ++t) {
    const Half* row = task.values + t * task.stride;
    for (uint32_t first = 0; first < task.head_dim; first += task.value_group) {
      auto high = V::LoadHalf(row + first);
      auto low = high;
      for (uint32_t c = first + V::kLanes; c < first + task.value_group; c += V::kLanes) {
        const auto x = V::LoadHalf(row + c);
        high = V::Max(high, x);
        low = V::Min(low, x);
      }
      *highs++ = V::Largest(high);
      *lows++ = -V::Largest(V::Sub(V::Set(0.0F), low));
    }
  }
}

/// 16 codes of a byte to 16 codes of kBits.
template <uint32_t kBits>
void StoreCodes(const uint8_t* codes, std::byte* dst) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(codes));
  if constexpr (kBits == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), bytes);
  } else {
    const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(1 | 1 << (8 + kBits)));
    if constexpr (kBits == 4) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(dst), _mm_packus_epi16(pairs, pairs));
    } else {
      const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(1 | 1 << (16 + 2 * kBits)));
      if constexpr (kBits == 2) {
        const __m128i words = _mm_packs_epi32(fours, fours);
        const int word = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
        __builtin_memcpy(dst, &word, sizeof word);
      } else {
        const __m128i eights = _mm_or_si128(_mm_and_si128(fours, _mm_set1_epi64x(0xFFF)), _mm_srli_epi64(fours, 20));
        const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(eights));
        const auto high = static_cast<uint64_t>(_mm_extract_epi64(eights, 1));
        const uint64_t sixteen = low | high << 24;
        __builtin_memcpy(dst, &sixteen, 6);
      }
    }
  }
}

/// Codes of all tokens, given zeros and reciprocals of their groups.
template <class V, uint32_t kBits, bool kMidRise, bool kOneGroup>
void EncodeValues(const PackTask& task, const float* zeros, const float* inverses) {
  const auto last = V::Set(static_cast<float>((1U << kBits) - 1));
  const uint32_t groups = kOneGroup ? 1 : task.head_dim / task.value_group;
  alignas(64) uint8_t codes[codec::kMaxHeadDim];
  std::byte* dst = task.page + task.value_codes;
  for (uint32_t t = 0; t < task.page_tokens; ++t, zeros += groups, inverses += groups) {
    const Half* row = task.values + t * task.stride;
    auto zero = V::Set(zeros[0]);
    auto inverse = V::Set(inverses[0]);
    for (uint32_t c = 0; c < task.head_dim; c += 4 * V::kLanes) {
      typename V::I code[4];
      KVANT_UNROLL
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t at = c + k * V::kLanes;
        code[k] = V::SetInt(0);
        if (at < task.head_dim) {
          if constexpr (!kOneGroup) {
            zero = V::Set(zeros[at / task.value_group]);
            inverse = V::Set(inverses[at / task.value_group]);
          }
          const auto level = V::Mul(V::Sub(V::LoadHalf(row + at), zero), inverse);
          code[k] = kMidRise ? V::Truncate(V::Min(V::Add(level, V::Set(0.5F)), last)) : V::Round(V::Min(level, last));
        }
      }
      V::StoreBytes(codes + c, V::NarrowUnsigned(code[0], code[1], code[2], code[3]));
    }
    for (uint32_t c = 0; c < task.head_dim; c += 16, dst += 2 * kBits) {
      StoreCodes<kBits>(codes + c, dst);
    }
  }
}

template <class V, uint32_t kBits>
void EncodeValuesOf(const PackTask& task, const float* zeros, const float* inverses) {
  const bool one_group = task.value_group == task.head_dim;
  if (task.mid_rise_values) {
    return one_group ? EncodeValues<V, kBits, true, true>(task, zeros, inverses)
                     : EncodeValues<V, kBits, true, false>(task, zeros, inverses);
  }
  return one_group ? EncodeValues<V, kBits, false, true>(task, zeros, inverses)
                   : EncodeValues<V, kBits, false, false>(task, zeros, inverses);
}

template <class V>
void PackValues(const PackTask& task) {
  constexpr uint32_t kMaxGroups = kMaxTokens * kMaxValueGroups;
  alignas(64) float lows[kMaxGroups];
  alignas(64) float highs[kMaxGroups];
  FindValueRanges<V>(task, lows, highs);
  const uint32_t num_groups = task.page_tokens * (task.head_dim / task.value_group);
  const auto levels = static_cast<float>(1U << task.value_bits);
  const auto divisor = V::Set(task.mid_rise_values ? levels : levels - 1.0F);
  auto* scales = reinterpret_cast<Half*>(task.page + task.value_scales);
  auto* zeros = reinterpret_cast<Half*>(task.page + task.value_zeros);
  for (uint32_t i = 0; i < num_groups; i += V::kLanes) {
    const Fitted<V> fitted =
        Fit<V>(task.mid_rise_values, V::Load(lows + i), V::Load(highs + i), divisor, scales + i, zeros + i);
    V::Store(lows + i, fitted.zero);
    V::Store(highs + i, fitted.inverse);
  }
  switch (task.value_bits) {
    case 2: return EncodeValuesOf<V, 2>(task, lows, highs);
    case 3: return EncodeValuesOf<V, 3>(task, lows, highs);
    case 4: return EncodeValuesOf<V, 4>(task, lows, highs);
    default: return EncodeValuesOf<V, 8>(task, lows, highs);
  }
}

template <class V>
void RotateRows(const RotateTask& task) {
  alignas(64) float row[codec::kMaxHeadDim];
  for (size_t i = 0; i < task.num_rows; ++i) {
    for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
      V::Store(row + c, V::LoadHalf(task.src + i * task.src_stride + c));
    }
    RotateValues(task.head_dim, row);
    for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
      V::StoreHalf(task.dst + i * task.dst_stride + c, V::Load(row + c));
    }
  }
}

template <class V>
void PackPair(const PackTask& task) {
  PackKeys<V>(task);
  PackValues<V>(task);
}

}  // namespace
}  // namespace kvant::kernels
