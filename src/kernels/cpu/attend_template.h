#pragma once

#include "kernels/cpu/attend_kernels.h"
#include "kvant/codec/token_page.h"

// Attention to one stretch of tokens, written once for every instruction set. V is one of the Lanes structs.
//
// A lane is a token while logits are made and a channel while values are added, so nothing is summed across lanes in an
// inner loop. Each row's operations and their order depend on the row and the tokens alone, never on how many rows
// share the call: that makes results bit-equal under any grouping.
namespace kvant::kernels {
namespace {

using codec::TokenCodec;

// Before loops over rows and vectors: unrolled early, their arrays become registers.
#define KVANT_UNROLL _Pragma("GCC unroll 16")

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

/// Calls body(Count<n>{}) for n = count, 1 <= count <= kMax: a run-time count becomes a compile-time one.
template <int kMax, class Body>
void WithCount(uint32_t count, const Body& body) {
  if constexpr (kMax > 1) {
    if (count < kMax) {
      return WithCount<kMax - 1>(count, body);
    }
  }
  body(Count<kMax>{});
}

constexpr float kLargestX = 32767.0F;  ///< of what is cut to 16 bits

constexpr uint32_t RoundUpTo(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Vectors per row in an inner loop: enough independent chains to hide latency, few enough for the registers.
template <class V>
constexpr uint32_t VectorsFor(int rows) {
  constexpr uint32_t kChains = V::kMaxRows * 2;
  return rows == 1 ? 4 : rows <= static_cast<int>(kChains) / 4 ? 4 : 2;
}

// e^x to about 1e-7 relative for x <= 0, and 0 where x < -60: what is that small adds nothing to a softmax in fp32, and
// the products made from the rest stay clear of subnormal numbers. Cody-Waite reduction, then a polynomial of degree 6
// with coefficients from a least-squares fit on Chebyshev nodes of [-ln2/2, ln2/2].
template <class V>
[[gnu::always_inline]] inline typename V::F Exp(typename V::F x) {
  constexpr float kSmallest = -60.0F;
  const auto clamped = V::Max(x, V::Set(kSmallest));
  const auto n = V::Round(V::Mul(clamped, V::Set(1.44269504F)));
  const auto nf = V::ToFloats(n);
  auto r = V::Fma(nf, V::Set(-0.693359375F), clamped);
  r = V::Fma(nf, V::Set(2.12194440e-4F), r);
  auto p = V::Fma(r, V::Set(1.0F / 720.0F), V::Set(1.0F / 120.0F));
  p = V::Fma(p, r, V::Set(1.0F / 24.0F));
  p = V::Fma(p, r, V::Set(1.0F / 6.0F));
  p = V::Fma(p, r, V::Set(0.5F));
  p = V::Fma(V::Mul(p, r), r, r);
  return V::ZeroBelow(V::ScaleByPowerOf2(V::Add(p, V::Set(1.0F)), n), x, kSmallest);
}

// ---- fp16 -----------------------------------------------------------------------------------------------------------

/// Address of the `lane_block`-th run of kLanes tokens in a stretch of key tiles with `unit_bytes` a token and step.
template <class V>
[[gnu::always_inline]] inline const std::byte* KeysAt(const Stretch& stretch, uint32_t lane_block, size_t unit_bytes) {
  const uint32_t token = lane_block * V::kLanes;
  return stretch.keys + token / codec::kTileTokens * stretch.key_tile_bytes + token % codec::kTileTokens * unit_bytes;
}

template <class V, int kRows, uint32_t kVectors>
void ExactLogits(const Stretch& stretch, const RowBlock& rows, uint32_t first_row, uint32_t lane_block,
                 StretchMemory& memory) {
  constexpr size_t kStep = codec::kTileTokens * sizeof(Half);
  typename V::F acc[kRows][kVectors];
  const std::byte* keys[kVectors];
  KVANT_UNROLL
  for (uint32_t b = 0; b < kVectors; ++b) {
    keys[b] = KeysAt<V>(stretch, lane_block + b, sizeof(Half));
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][b] = V::Set(0.0F);
    }
  }
  const float* q = rows.q + first_row;
  for (uint32_t c = 0; c < stretch.head_dim; ++c, q += kRowBlock) {
    typename V::F k[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      k[b] = V::LoadHalf(keys[b] + c * kStep);
      V::Prefetch(keys[b] + c * kStep + stretch.keys_ahead);
    }
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto qc = V::Set(q[r]);
      KVANT_UNROLL
      for (uint32_t b = 0; b < kVectors; ++b) {
        acc[r][b] = V::Fma(qc, k[b], acc[r][b]);
      }
    }
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto mean = V::Set(rows.mean_logit[first_row + r]);
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      V::Store(&memory.p[first_row + r][(lane_block + b) * V::kLanes], V::Add(acc[r][b], mean));
    }
  }
}

template <class V, int kRows, uint32_t kVectors>
void AddExactValues(const Stretch& stretch, uint32_t reach, RowBlock& rows, uint32_t first_row, uint32_t channel,
                    const StretchMemory& memory) {
  typename V::F acc[kRows][kVectors];
  float* out = rows.out + size_t{first_row} * stretch.value_channels + channel;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      acc[r][b] = V::Load(out + r * stretch.value_channels + b * V::kLanes);
    }
  }
  const size_t token_bytes = stretch.value_channels * sizeof(Half);
  const std::byte* values = stretch.values + channel * sizeof(Half);
  const float(*p)[kStretchTokens] = memory.p + first_row;
  for (uint32_t t = 0; t < reach; ++t, values += token_bytes) {
    typename V::F v[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      v[b] = V::LoadHalf(values + b * V::kLanes * sizeof(Half));
    }
    V::Prefetch(values + stretch.values_ahead);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto pt = V::Set(p[r][t]);
      KVANT_UNROLL
      for (uint32_t b = 0; b < kVectors; ++b) {
        acc[r][b] = V::Fma(pt, v[b], acc[r][b]);
      }
    }
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      V::Store(out + r * stretch.value_channels + b * V::kLanes, acc[r][b]);
    }
  }
}

// ---- codes ----------------------------------------------------------------------------------------------------------

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
  for (uint32_t g = 0; g < num_units; ++g, x += 2 * kParts * kRowBlock) {
    typename V::I units[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      const std::byte* unit = keys[b] + g * codec::kTileTokens * kUnitBytes;
      units[b] = V::LoadInt(unit);
      V::Prefetch(unit + stretch.keys_ahead);
    }
    DotUnits<V, kBits, 0, kRows, kVectors>(units, x, 1, kRowBlock, acc);
    if constexpr (kParts == 2) {
      DotUnits<V, kBits, 1, kRows, kVectors>(units, x + 2 * kRowBlock, 1, kRowBlock, acc);
    }
  }
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
      V::Store(&memory.p[row][token], V::Fma(dot, V::Set(rows.x_scale[row]), V::Set(rows.mean_logit[row])));
    }
  }
}

template <class V, TokenCodec kCodec, int kRows, uint32_t kVectors>
void AddCodeValues(const Stretch& stretch, uint32_t reach, RowBlock& rows, uint32_t first_row, uint32_t channel,
                   const StretchMemory& memory) {
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
  for (uint32_t g = 0; g < num_units; ++g, x += 2 * kParts, values += unit_stride) {
    typename V::I units[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      const std::byte* unit = values + b * V::kLanes * 4;
      units[b] = V::LoadInt(unit);
      V::Prefetch(unit + stretch.values_ahead);
    }
    DotUnits<V, kBits, 0, kRows, kVectors>(units, x, kRowPairs, 1, acc);
    if constexpr (kParts == 2) {
      DotUnits<V, kBits, 1, kRows, kVectors>(units, x + 2, kRowPairs, 1, acc);
    }
  }
  float* out = rows.out + size_t{first_row} * stretch.value_channels + channel;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto scale = V::Set(memory.p_scale[first_row + r]);
    const auto zero = V::Set(memory.p_zero[first_row + r]);
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      float* at = out + r * stretch.value_channels + b * V::kLanes;
      auto sum = V::Fma(V::ToFloats(acc[r][b]), scale, V::Load(at));
      if constexpr (codec::HasZero(kCodec)) {
        sum = V::Add(sum, zero);
      }
      V::Store(at, sum);
    }
  }
}

// ---- softmax --------------------------------------------------------------------------------------------------------

/// What one pass over a row's weights gives: exp(logit - max) is the weight of a token.
template <class V>
struct RowWeights {
  typename V::F sum;      ///< of the weights
  typename V::F zero;     ///< of weight · value zero
  typename V::F largest;  ///< magnitude of weight · value scale
};

/// Logits become weights (kFp16), or weights times the tokens' value scales.
template <class V, TokenCodec kCodec>
RowWeights<V> WeighRow(const Stretch& stretch, uint32_t padded, float max, float* p) {
  RowWeights<V> row{V::Set(0.0F), V::Set(0.0F), V::Set(0.0F)};
  const auto minus_max = V::Set(-max);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    auto weight = Exp<V>(V::Add(V::Load(p + t), minus_max));
    row.sum = V::Add(row.sum, weight);
    if constexpr (codec::HasZero(kCodec)) {
      row.zero = V::Fma(weight, V::LoadHalf(stretch.value_zeros + t), row.zero);
    }
    if constexpr (codec::HasScale(kCodec)) {
      weight = V::Mul(weight, V::LoadHalf(stretch.value_scales + t));
      row.largest = V::Max(row.largest, V::Abs(weight));
    }
    V::Store(p + t, weight);
  }
  return row;
}

/// Cut a row of scaled weights to 16 bits.
template <class V>
void CutWeights(float max, uint32_t padded, uint32_t row, StretchMemory& memory) {
  const auto inverse = V::Set(max > 0.0F ? kLargestX / max : 0.0F);
  const float* p = memory.p[row];
  auto* px = reinterpret_cast<std::byte*>(memory.px[row]);
  auto sum = V::SetInt(0);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    const auto x = V::Round(V::Mul(V::Load(p + t), inverse));
    sum = V::AddInt(sum, x);
    V::StorePaired(px + t * sizeof(int16_t), x);
  }
  memory.p_scale[row] = max / kLargestX;
  memory.px_sum[row] = V::SumInt(sum);
}

/// The row's earlier sum and output, made relative to its new maximum.
template <class V>
void RaiseMax(float max, uint32_t value_channels, RowBlock& rows, uint32_t row) {
  const auto keep = Exp<V>(V::Set(rows.max[row] - max));
  float* out = rows.out + size_t{row} * value_channels;
  for (uint32_t c = 0; c < value_channels; c += V::kLanes) {
    V::Store(out + c, V::Mul(V::Load(out + c), keep));
  }
  rows.sum[row] *= V::Largest(keep);
  rows.max[row] = max;
}

/// Hides what a row does not see, and finds its new running maximum; 0 for a row that sees nothing.
template <class V>
float MaskRow(const RowBlock& rows, uint32_t padded, uint32_t row, float* p) {
  const uint32_t visible = rows.visible[row];
  for (uint32_t t = visible; t < padded; ++t) {
    p[t] = -__builtin_inff();
  }
  if (visible == 0) {
    return 0.0F;
  }
  auto largest = V::Set(rows.max[row]);
  for (uint32_t t = 0; t < padded; t += V::kLanes) {
    largest = V::Max(largest, V::Load(p + t));
  }
  return V::Largest(largest);
}

/// Logits become weights of the values, relative to each row's new running maximum. Step by step for all rows, since
/// the steps of one row wait for each other.
template <class V, TokenCodec kCodec>
void SoftmaxRows(const Stretch& stretch, uint32_t padded, RowBlock& rows, StretchMemory& memory) {
  float max[kRowBlock];
  float largest[kRowBlock];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    max[row] = MaskRow<V>(rows, padded, row, memory.p[row]);
  }
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    const RowWeights<V> weights = WeighRow<V, kCodec>(stretch, padded, max[row], memory.p[row]);
    if (rows.visible[row] > 0 && max[row] > rows.max[row]) {
      RaiseMax<V>(max[row], stretch.value_channels, rows, row);
    }
    rows.sum[row] += V::Sum(weights.sum);
    memory.p_zero[row] = V::Sum(weights.zero);
    largest[row] = V::Largest(weights.largest);
  }
  if constexpr (codec::HasScale(kCodec)) {
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      CutWeights<V>(largest[row], padded, row, memory);
    }
  }
}

// ---- one stretch ----------------------------------------------------------------------------------------------------

/// Calls body(rows, vectors, first_row, first_vector) until all rows and vectors are covered, with compile-time counts.
template <class V, class Body>
void Tiled(uint32_t num_rows, uint32_t num_vectors, const Body& body) {
  for (uint32_t row = 0; row < num_rows; row += V::kMaxRows) {
    const uint32_t left = num_rows - row;
    WithCount<V::kMaxRows>(left < V::kMaxRows ? left : V::kMaxRows, [&](auto rows) {
      constexpr uint32_t kVectors = VectorsFor<V>(decltype(rows)::value);
      uint32_t vector = 0;
      for (; vector + kVectors <= num_vectors; vector += kVectors) {
        body(rows, Count<kVectors>{}, row, vector);
      }
      for (; vector < num_vectors; ++vector) {
        body(rows, Count<1>{}, row, vector);
      }
    });
  }
}

template <class V, TokenCodec kCodec>
void AttendStretch(const Stretch& stretch, uint32_t reach, RowBlock& rows, StretchMemory& memory) {
  constexpr bool kExact = kCodec == TokenCodec::kFp16;
  const uint32_t padded = RoundUpTo(reach, codec::kTileTokens);
  Tiled<V>(rows.num_rows, padded / V::kLanes, [&](auto num_rows, auto num_vectors, uint32_t row, uint32_t vector) {
    constexpr int kRows = decltype(num_rows)::value;
    constexpr uint32_t kVectors = decltype(num_vectors)::value;
    if constexpr (kExact) {
      ExactLogits<V, kRows, kVectors>(stretch, rows, row, vector, memory);
    } else {
      CodeLogits<V, kCodec, kRows, kVectors>(stretch, rows, row, vector, memory);
    }
  });
  SoftmaxRows<V, kCodec>(stretch, padded, rows, memory);
  const uint32_t num_vectors = stretch.value_channels / V::kLanes;
  Tiled<V>(rows.num_rows, num_vectors, [&](auto num_rows, auto vectors, uint32_t row, uint32_t vector) {
    constexpr int kRows = decltype(num_rows)::value;
    constexpr uint32_t kVectors = decltype(vectors)::value;
    if constexpr (kExact) {
      AddExactValues<V, kRows, kVectors>(stretch, reach, rows, row, vector * V::kLanes, memory);
    } else {
      AddCodeValues<V, kCodec, kRows, kVectors>(stretch, reach, rows, row, vector * V::kLanes, memory);
    }
  });
}

// ---- queries --------------------------------------------------------------------------------------------------------

/// One row times the logit scale (and the key scales), padded with zeros; returns q·mean times the logit scale.
template <class V>
float ScaleRow(const RowSource& source, uint32_t row, uint32_t padded, float* scaled) {
  const float* q = source.rows[row];
  const auto scale = V::Set(source.scale);
  auto mean = V::Set(0.0F);
  for (uint32_t c = 0; c < padded; ++c) {
    scaled[c] = c < source.head_dim ? q[c] : 0.0F;
  }
  const bool equalized = source.key_mean != nullptr;
  uint32_t c = 0;
  float tail_mean = 0.0F;
  for (; c + V::kLanes <= source.head_dim; c += V::kLanes) {
    auto value = V::Mul(V::Load(scaled + c), scale);
    if (equalized) {
      mean = V::Fma(value, V::LoadHalf(source.key_mean + c), mean);
      value = V::Mul(value, V::LoadHalf(source.key_scale + c));
    }
    V::Store(scaled + c, value);
  }
  if (c < source.head_dim) {
    // The last channels of a ragged row, through a padded copy of the map.
    alignas(64) Half mean_tail[V::kLanes] = {};
    alignas(64) Half scale_tail[V::kLanes] = {};
    for (uint32_t i = 0; equalized && c + i < source.head_dim; ++i) {
      mean_tail[i] = source.key_mean[c + i];
      scale_tail[i] = source.key_scale[c + i];
    }
    auto value = V::Mul(V::Load(scaled + c), scale);
    if (equalized) {
      tail_mean = V::Sum(V::Mul(value, V::LoadHalf(mean_tail)));
      value = V::Mul(value, V::LoadHalf(scale_tail));
    }
    V::Store(scaled + c, value);
  }
  return V::Sum(mean) + tail_mean;
}

/// Cut a scaled row to 16 bits, paired, into its column of rows.x.
template <class V>
void CutRow(const float* scaled, uint32_t head_dim, uint32_t row, RowBlock& rows) {
  const uint32_t padded = RoundUpTo(head_dim, 8);
  auto largest = V::Set(0.0F);
  for (uint32_t c = 0; c < padded; c += V::kLanes) {
    largest = V::Max(largest, V::Abs(V::Load(scaled + c)));
  }
  constexpr float kSmallestMax = 1e-30F;  // below, the reciprocal would overflow; such a row has equal logits anyway
  const float max = V::Largest(largest);
  const auto inverse = V::Set(max > kSmallestMax ? kLargestX / max : 0.0F);
  alignas(64) int32_t pairs[codec::kMaxHeadDim / 2];
  auto sum = V::SetInt(0);
  for (uint32_t c = 0; c < padded; c += V::kLanes) {
    const auto x = V::Round(V::Mul(V::Load(scaled + c), inverse));
    sum = V::AddInt(sum, x);
    V::StorePaired(reinterpret_cast<std::byte*>(pairs) + c * sizeof(int16_t), x);
  }
  for (uint32_t i = 0; i < padded / 2; ++i) {
    rows.x[i * kRowBlock + row] = pairs[i];
  }
  rows.x_scale[row] = max / kLargestX;
  rows.x_sum[row] = V::SumInt(sum);
}

template <class V>
void PrepareRows(TokenCodec codec, const RowSource& source, RowBlock& rows) {
  alignas(64) float scaled[codec::kMaxHeadDim];
  for (uint32_t row = 0; row < source.num_rows; ++row) {
    rows.mean_logit[row] = ScaleRow<V>(source, row, RoundUpTo(source.head_dim, 16), scaled);
    if (codec == TokenCodec::kFp16) {
      for (uint32_t c = 0; c < source.head_dim; ++c) {
        rows.q[c * kRowBlock + row] = scaled[c];
      }
    } else {
      CutRow<V>(scaled, source.head_dim, row, rows);
    }
  }
}

template <class V>
constexpr AttendKernels MakeAttendKernels() {
  return {PrepareRows<V>,
          {AttendStretch<V, TokenCodec::kFp16>, AttendStretch<V, TokenCodec::kInt8>,
           AttendStretch<V, TokenCodec::kInt4>, AttendStretch<V, TokenCodec::kInt4Affine>}};
}

}  // namespace
}  // namespace kvant::kernels
