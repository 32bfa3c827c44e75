#pragma once

#include "kernels/cpu/attend_common.h"

// Logits and values of fp16 segments.
namespace kvant::kernels {
namespace {

template <uint32_t kVectors>
constexpr int kLinesOfExactStep = kVectors >= 4 ? 2 : 1;  ///< a step meets half as many bytes as one of codes

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
  Fetch fetch = memory.fetch;
  for (uint32_t c = 0; c < stretch.head_dim; ++c, q += kRowBlock) {
    typename V::F k[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      k[b] = V::LoadHalf(keys[b] + c * kStep);
    }
    FetchAhead<kLinesOfExactStep<kVectors>>(fetch);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto qc = V::Set(q[r]);
      KVANT_UNROLL
      for (uint32_t b = 0; b < kVectors; ++b) {
        acc[r][b] = V::Fma(qc, k[b], acc[r][b]);
      }
    }
  }
  memory.fetch = fetch;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto mean = V::Set(rows.q_mean[first_row + r]);
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      V::Store(&memory.p[first_row + r][(lane_block + b) * V::kLanes], V::Add(acc[r][b], mean));
    }
  }
}

template <class V, int kRows, uint32_t kVectors>
void AddExactValues(const Stretch& stretch, uint32_t reach, RowBlock& rows, uint32_t first_row, uint32_t channel,
                    StretchMemory& memory) {
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
  Fetch fetch = memory.fetch;
  for (uint32_t t = 0; t < reach; ++t, values += token_bytes) {
    typename V::F v[kVectors];
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      v[b] = V::LoadHalf(values + b * V::kLanes * sizeof(Half));
    }
    FetchAhead<kLinesOfExactStep<kVectors>>(fetch);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto pt = V::Set(p[r][t]);
      KVANT_UNROLL
      for (uint32_t b = 0; b < kVectors; ++b) {
        acc[r][b] = V::Fma(pt, v[b], acc[r][b]);
      }
    }
  }
  memory.fetch = fetch;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (uint32_t b = 0; b < kVectors; ++b) {
      V::Store(out + r * stretch.value_channels + b * V::kLanes, acc[r][b]);
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
