#pragma once

#include "kernels/cpu/rows_kernels.h"

// Encoding and decoding of rows, written once for AVX2 and AVX-512. V is one of the Lanes structs. Every float is made
// by the same operations as in quant/group.cc, so the bytes are the same.
namespace kvant::kernels {
namespace {

using codec::TokenCodec;

constexpr uint32_t kRowBatch = 16;  ///< rows whose scales are computed together, one lane a row

template <class V>
constexpr uint32_t kWidth = 4 * V::kLanes;  ///< elements encoded in one step

template <TokenCodec kCodec>
constexpr int kBitsOf = codec::CodeBits(kCodec);

/// Bytes of a row's codes, as codec::RowCodeBytes.
template <TokenCodec kCodec>
constexpr uint32_t RowBytes(uint32_t head_dim) {
  return kBitsOf<kCodec> == 8 ? head_dim : (head_dim + 7) / 8 * 4;
}

/// Whether steps of `width` elements, the last one overlapping, cover a row. Steps begin at nibble groups.
constexpr bool Covers(uint32_t width, uint32_t head_dim) { return head_dim >= width && head_dim % 8 == 0; }

/// Offset of the `index`-th step; the last is moved back to end with the row.
constexpr uint32_t StepAt(uint32_t index, uint32_t width, uint32_t padded) {
  const uint32_t last = padded - width;
  return index * width < last ? index * width : last;
}

constexpr uint32_t NumSteps(uint32_t width, uint32_t padded) { return (padded + width - 1) / width; }

/// A row as the steps need it: itself, or a copy filled up with its last element, which moves no minimum or maximum.
template <class V>
struct PaddedRow {
  alignas(64) uint16_t copy[codec::kMaxHeadDim + kWidth<V>];
  uint32_t padded;

  explicit PaddedRow(uint32_t head_dim)
      : padded(Covers(kWidth<V>, head_dim) ? head_dim : (head_dim + kWidth<V> - 1) / kWidth<V> * kWidth<V>) {}

  const uint16_t* Of(const Half* src, uint32_t head_dim) {
    if (padded == head_dim) {
      return &src->bits;
    }
    for (uint32_t c = 0; c < padded; ++c) {
      copy[c] = src[c < head_dim ? c : head_dim - 1].bits;
    }
    return copy;
  }
};

/// Scales of a batch of rows: as stored (bits of halves), and as the codes are computed from them.
struct BatchParams {
  alignas(64) uint16_t low[kRowBatch];   ///< smallest element (affine), later the stored zero
  alignas(64) uint16_t high[kRowBatch];  ///< largest element (affine) or magnitude (symmetric), later the stored scale
  alignas(64) float zero[kRowBatch];
  alignas(64) float inverse[kRowBatch];
};

constexpr uint16_t BitsOfSortable(int16_t bits) { return static_cast<uint16_t>(bits < 0 ? bits ^ 0x7FFF : bits); }

template <class V, TokenCodec kCodec>
void FindRange(const uint16_t* x, uint32_t padded, uint16_t* low, uint16_t* high) {
  constexpr uint32_t kHalves = 2 * V::kLanes;
  const uint32_t steps = NumSteps(kHalves, padded);
  if constexpr (codec::HasZero(kCodec)) {
    auto largest = V::Sortable(V::LoadHalfBits(x));
    auto smallest = largest;
    for (uint32_t i = 1; i < steps; ++i) {
      const auto bits = V::Sortable(V::LoadHalfBits(x + StepAt(i, kHalves, padded)));
      largest = V::MaxHalfBits(largest, bits);
      smallest = V::MinHalfBits(smallest, bits);
    }
    *low = BitsOfSortable(V::SmallestHalfBits(smallest));
    *high = BitsOfSortable(V::LargestHalfBits(largest));
  } else {
    auto largest = V::HalfMagnitude(V::LoadHalfBits(x));
    for (uint32_t i = 1; i < steps; ++i) {
      largest = V::MaxHalfBits(largest, V::HalfMagnitude(V::LoadHalfBits(x + StepAt(i, kHalves, padded))));
    }
    *high = static_cast<uint16_t>(V::LargestHalfBits(largest));
  }
}

/// quant::FitGroup for a batch of rows.
template <class V, TokenCodec kCodec>
void FitBatch(BatchParams& params) {
  constexpr int kBits = kBitsOf<kCodec>;
  constexpr float kLevels =
      static_cast<float>(codec::HasZero(kCodec) ? quant::AffineMax(kBits) : quant::SymmetricMax(kBits));
  constexpr float kHalfOfSmallest = 0x1p-25F;
  for (uint32_t r = 0; r < kRowBatch; r += V::kLanes) {
    auto range = V::LoadHalf(params.high + r);
    if constexpr (codec::HasZero(kCodec)) {
      V::StoreHalf(params.low + r, V::Add(V::LoadHalf(params.low + r), V::Set(0.0F)));  // -0 becomes 0
      const auto zero = V::LoadHalf(params.low + r);
      V::Store(params.zero + r, zero);
      range = V::Max(V::Sub(range, zero), V::Set(0.0F));
    }
    V::StoreHalf(params.high + r, V::Div(range, V::Set(kLevels)));
    const auto scale = V::LoadHalf(params.high + r);
    V::Store(params.inverse + r, V::ZeroBelow(V::Div(V::Set(1.0F), scale), scale, kHalfOfSmallest));
  }
}

/// quant::EncodeGroup for kWidth elements.
template <class V, TokenCodec kCodec>
[[gnu::always_inline]] inline typename V::B EncodeStep(const uint16_t* x, float inverse, float zero) {
  constexpr int kBits = kBitsOf<kCodec>;
  typename V::I level[4];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    auto value = V::LoadHalf(x + i * V::kLanes);
    if constexpr (codec::HasZero(kCodec)) {
      value = V::Sub(value, V::Set(zero));
    }
    level[i] = V::Round(V::Mul(value, V::Set(inverse)));
  }
  const auto codes = V::Narrow(level[0], level[1], level[2], level[3]);
  if constexpr (codec::HasZero(kCodec)) {
    constexpr auto kMax = static_cast<int8_t>(quant::AffineMax(kBits));
    return V::ClampBytes(codes, 0, kMax);
  } else {
    constexpr auto kMax = static_cast<int8_t>(quant::SymmetricMax(kBits));
    constexpr auto kBias = static_cast<uint8_t>(quant::SymmetricBias(kBits));
    return V::AddBytes(V::ClampBytes(codes, -kMax, kMax), kBias);
  }
}

template <class V, TokenCodec kCodec>
void EncodeRow(const uint16_t* x, uint32_t padded, float inverse, float zero, uint8_t* row) {
  const uint32_t steps = NumSteps(kWidth<V>, padded);
  for (uint32_t i = 0; i < steps; ++i) {
    const uint32_t at = StepAt(i, kWidth<V>, padded);
    const auto codes = EncodeStep<V, kCodec>(x + at, inverse, zero);
    if constexpr (kBitsOf<kCodec> == 8) {
      V::StoreBytes(row + at, codes);
    } else {
      V::StoreNibbles(row + at / 2, codes);
    }
  }
}

/// Codes of a padded row, cut to the real ones; nibbles beyond them become 0.
template <TokenCodec kCodec>
void CopyCodes(const uint8_t* padded_row, uint32_t head_dim, uint8_t* row) {
  const uint32_t row_bytes = RowBytes<kCodec>(head_dim);
  const bool drop_high = kBitsOf<kCodec> == 4 && head_dim % 8 != 0;
  for (uint32_t i = 0; i < row_bytes; ++i) {
    row[i] = drop_high && i + 4 >= row_bytes ? padded_row[i] & 0xFU : padded_row[i];
  }
}

template <class V, TokenCodec kCodec>
void EncodeRows(uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens, RowsOut out) {
  const size_t row_bytes = RowBytes<kCodec>(head_dim);
  PaddedRow<V> row(head_dim);
  alignas(64) uint8_t padded_codes[codec::kMaxHeadDim + kWidth<V>];
  BatchParams params{};
  for (size_t first = 0; first < num_tokens; first += kRowBatch) {
    const size_t count = num_tokens - first < kRowBatch ? num_tokens - first : kRowBatch;
    for (size_t r = 0; r < count; ++r) {
      FindRange<V, kCodec>(row.Of(src + (first + r) * src_stride, head_dim), row.padded, params.low + r,
                           params.high + r);
    }
    FitBatch<V, kCodec>(params);
    for (size_t r = 0; r < count; ++r) {
      const uint16_t* x = row.Of(src + (first + r) * src_stride, head_dim);
      uint8_t* codes = out.codes + (first + r) * row_bytes;
      if (row.padded == head_dim) {
        EncodeRow<V, kCodec>(x, row.padded, params.inverse[r], params.zero[r], codes);
      } else {
        EncodeRow<V, kCodec>(x, row.padded, params.inverse[r], params.zero[r], padded_codes);
        CopyCodes<kCodec>(padded_codes, head_dim, codes);
      }
      out.scales[first + r].bits = params.high[r];
      if constexpr (codec::HasZero(kCodec)) {
        out.zeros[first + r].bits = params.low[r];
      }
    }
  }
}

/// quant::DecodeGroup, rounded to fp16 within its range. `levels` are codes without their bias.
template <class V>
[[gnu::always_inline]] inline void DecodeLevels(typename V::F levels, typename V::F scale, typename V::F zero,
                                                uint16_t* dst) {
  const auto value = V::Add(V::Mul(scale, levels), zero);
  V::StoreHalf(dst, V::Max(V::Min(value, V::Set(kHalfMax)), V::Set(-kHalfMax)));
}

template <class V>
void DecodeBytes(const uint8_t* row, uint32_t padded, typename V::F scale, typename V::F zero, uint16_t* dst) {
  constexpr int32_t kBias = quant::SymmetricBias(8);
  const uint32_t steps = NumSteps(V::kLanes, padded);
  for (uint32_t i = 0; i < steps; ++i) {
    const uint32_t at = StepAt(i, V::kLanes, padded);
    const auto levels = V::ToFloats(V::AddInt(V::LoadBytes(row + at), V::SetInt(-kBias)));
    DecodeLevels<V>(levels, scale, zero, dst + at);
  }
}

/// A 4-bit row has 16 different elements: they are decoded once and then looked up.
template <class V, TokenCodec kCodec>
void DecodeNibbles(const uint8_t* row, uint32_t padded, typename V::F scale, typename V::F zero, uint16_t* dst) {
  constexpr int kBias = codec::HasZero(kCodec) ? 0 : quant::SymmetricBias(4);
  constexpr uint32_t kNumCodes = 16;
  alignas(64) uint16_t elements[kNumCodes];
  alignas(64) float levels[kNumCodes];
  for (uint32_t code = 0; code < kNumCodes; ++code) {
    levels[code] = static_cast<float>(static_cast<int>(code) - kBias);
  }
  for (uint32_t code = 0; code < kNumCodes; code += V::kLanes) {
    DecodeLevels<V>(V::Load(levels + code), scale, zero, elements + code);
  }
  const auto table = V::LoadTable(elements);
  constexpr uint32_t kStep = 32;
  const uint32_t steps = NumSteps(kStep, padded);
  for (uint32_t i = 0; i < steps; ++i) {
    const uint32_t at = StepAt(i, kStep, padded);
    V::LookUpNibbles(row + at / 2, table, dst + at);
  }
}

template <class V, TokenCodec kCodec>
void DecodeRows(uint32_t head_dim, RowsIn rows, size_t num_tokens, Half* dst, size_t dst_stride) {
  const size_t row_bytes = RowBytes<kCodec>(head_dim);
  // A ragged 4-bit row is decoded with its padding nibbles, beside the destination.
  const uint32_t padded = kBitsOf<kCodec> == 8 ? head_dim : (head_dim + 7) / 8 * 8;
  alignas(64) uint16_t copy[codec::kMaxHeadDim];
  for (size_t t = 0; t < num_tokens; ++t) {
    const uint8_t* row = rows.codes + t * row_bytes;
    uint16_t* out = padded == head_dim ? &dst[t * dst_stride].bits : copy;
    const auto scale = V::SetHalf(rows.scales[t].bits);
    auto zero = V::Set(0.0F);
    if constexpr (codec::HasZero(kCodec)) {
      zero = V::SetHalf(rows.zeros[t].bits);
    }
    if constexpr (kBitsOf<kCodec> == 8) {
      DecodeBytes<V>(row, padded, scale, zero, out);
    } else {
      DecodeNibbles<V, kCodec>(row, padded, scale, zero, out);
    }
    for (uint32_t c = 0; padded != head_dim && c < head_dim; ++c) {
      dst[t * dst_stride + c].bits = copy[c];
    }
  }
}

template <class V>
bool ToHalfRow(const float* src, Half* dst, size_t count) {
  bool finite = true;
  size_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    finite = V::StoreHalfIfFinite(dst + i, V::Load(src + i)) && finite;
  }
  for (; i < count; ++i) {
    dst[i].bits = ToHalf(src[i]).bits;
    finite = finite && (dst[i].bits & 0x7FFFU) < 0x7C00U;
  }
  return finite;
}

template <class V>
constexpr RowLoops MakeRowLoops() {
  return {{nullptr, EncodeRows<V, TokenCodec::kInt8>, EncodeRows<V, TokenCodec::kInt4>,
           EncodeRows<V, TokenCodec::kInt4Affine>},
          {nullptr, DecodeRows<V, TokenCodec::kInt8>, DecodeRows<V, TokenCodec::kInt4>,
           DecodeRows<V, TokenCodec::kInt4Affine>},
          ToHalfRow<V>};
}

}  // namespace
}  // namespace kvant::kernels
