#pragma once

#include "kernels/cpu/attend_common.h"

// Logits and values of coded segments: integer products on the codes as they lie in memory.
namespace kvant::kernels {
namespace {

/// Four 8-bit codes a 32-bit lane become two vectors of 16-bit pairs: codes (0, 2) and (1, 3).
template <class V>
struct CodePairs {
  typename V::I even;
  typename V::I odd;
};

/// The `kPart`-th four codes of a unit: one part of bytes, or low and high nibbles.
template <class V, int kBits, int kPart>
[[gnu::always_inline]] inline CodePairs<V> Unpack(typename V::I unit) {
  if constexpr (kBits == 8) {
    return {V::And(unit, V::SetInt(0x00FF00FF)), V::template ShiftRight16<8>(unit)};
  } else {
    const auto mask = V::SetInt(0x000F000F);
    if constexpr (kPart == 0) {
      return {V::And(unit, mask), V::And(V::template ShiftRight16<8>(unit), mask)};
    } else {
      return {V::And(V::template ShiftRight16<4>(unit), mask), V::template ShiftRight16<12>(unit)};
    }
  }
}

/// acc[r][b] += Σ over the unit's codes of code · x, x being the paired rows at `x`, `x_row` apart, `x_pair` between
/// even and odd pairs.
template <class V, int kBits, int kPart, int kRows, uint32_t kVectors>
[[gnu::always_inline]] inline void DotUnits(const typename V::I* units, const int32_t* x, size_t x_row, size_t x_pair,
                                            typename V::I (*acc)[kVectors]) {
  CodePairs<V> codes[kVectors];
  KVANT_UNROLL
  for (uint32_t b = 0; b < kVectors; ++b) {
    codes[b] = Unpack<V, kBits, kPart>(units[b]);
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto even = V::SetInt(x[r * x_row]);
    const auto odd = V::SetInt(x[r * x_row + x_pair]);
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = V::DotPairs(V::DotPairs(acc[r][b], codes[b].even, even), codes[b].odd, odd);
      V::Pin(acc[r][b]);
    }
  }
}

template <TokenCodec kCodec>
constexpr int32_t kBias = codec::HasZero(kCodec) ? 0 : quant::SymmetricBias(codec::CodeBits(kCodec));

template <class V, TokenCodec kCodec, int kRows, uint32_t kVectors>
void CodeLogits(const Stretch& stretch, const RowBlock& rows, uint32_t first_row, uint32_t lane_block,
                StretchMemory& memory) {
  constexpr int kBits = codec::CodeBits(kCodec);
  constexpr uint32_t kParts = 8 / kBits;
  constexpr size_t kUnitBytes = 4;
  typename V::I acc[kRows][kVectors];
  const std::byte* keys[kVectors];
  KVANT_UNROLL
  for (uint32_t b = 0; b < kVectors; ++b) {
    keys[b] = KeysAt<V>(stretch, lane_block + b, kUnitBytes);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][b] = V::SetInt(-kBias<kCodec> * rows.x_sum[first_row + r]);
    }
  }
  const uint32_t num_units = (stretch.head_dim + 4 * kParts - 1) / (4 * kParts);
  const int32_t* x = rows.x + first_row;
  Fetch fetch = memory.fetch;
  for (uint32_t g = 0; g < num_units; ++g, x += 2 * kParts * kRowBlock) {
    typename V::I units[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      units[b] = V::LoadInt(keys[b] + g * codec::kTileTokens * kUnitBytes);
    }
    FetchAhead<kLinesOfStep<kVectors>>(fetch);
    DotUnits<V, kBits, 0, kRows, kVectors>(units, x, 1, kRowBlock, acc);
    if constexpr (kParts == 2) {
      DotUnits<V, kBits, 1, kRows, kVectors>(units, x + 2 * kRowBlock, 1, kRowBlock, acc);
    }
  }
  memory.fetch = fetch;
  KVANT_UNROLL
  for (uint32_t b = 0; b < kVectors; ++b) {
    const uint32_t token = (lane_block + b) * V::kLanes;
    const auto scale = V::LoadHalf(stretch.key_scales + token);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row = first_row + r;
      auto dot = V::Mul(V::ToFloats(acc[r][b]), scale);
      if constexpr (codec::HasZero(kCodec)) {
        dot = V::Fma(V::LoadHalf(stretch.key_zeros + token), V::Set(static_cast<float>(rows.x_sum[row])), dot);
      }
      V::Store(&memory.p[row][token], V::Fma(dot, V::Set(rows.x_scale[row]), V::Set(rows.x_mean[row])));
    }
  }
}

template <class V, TokenCodec kCodec, int kRows, uint32_t kVectors>
void AddCodeValues(const Stretch& stretch, uint32_t reach, RowBlock& rows, uint32_t first_row, uint32_t channel,
                   StretchMemory& memory) {
  constexpr int kBits = codec::CodeBits(kCodec);
  constexpr uint32_t kParts = 8 / kBits;
  constexpr size_t kRowPairs = kStretchTokens / 2;
  typename V::I acc[kRows][kVectors];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = V::SetInt(-kBias<kCodec> * memory.px_sum[first_row + r]);
    }
  }
  const size_t unit_stride = size_t{stretch.value_channels} * 4;
  const std::byte* values = stretch.values + size_t{channel} * 4;
  const int32_t* x = memory.px[first_row];
  const uint32_t num_units = (reach + 4 * kParts - 1) / (4 * kParts);
  Fetch fetch = memory.fetch;
  for (uint32_t g = 0; g < num_units; ++g, x += 2 * kParts, values += unit_stride) {
    typename V::I units[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      units[b] = V::LoadInt(values + b * V::kLanes * 4);
    }
    FetchAhead<kLinesOfStep<kVectors>>(fetch);
    DotUnits<V, kBits, 0, kRows, kVectors>(units, x, kRowPairs, 1, acc);
    if constexpr (kParts == 2) {
      DotUnits<V, kBits, 1, kRows, kVectors>(units, x + 2, kRowPairs, 1, acc);
    }
  }
  memory.fetch = fetch;
  float* out = rows.out + size_t{first_row} * stretch.value_channels + channel;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto scale = V::Set(memory.p_scale[first_row + r]);
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      float* at = out + r * stretch.value_channels + b * V::kLanes;
      V::Store(at, V::Fma(V::ToFloats(acc[r][b]), scale, V::Load(at)));
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
