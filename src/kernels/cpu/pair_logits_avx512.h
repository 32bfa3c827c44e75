#pragma once

#include "kernels/cpu/pair_common_avx512.h"
#include "kernels/cpu/pair_parts.h"

// Logits of a page that is loaded: q times the key scales is cut to words, whose sums the keys' bits look up.
namespace kvant::kernels {
namespace {

/// Of rows, q · zeros and the largest sum that q times the page's scales can have either way.
template <int kRows>
void MeasureRows(const PairTask& task, const PairMemory& pairs, uint32_t first_row, RowBlock& rows) {
  V::F zero[kSumRows];
  V::F sum[kSumRows];
  V::F magnitude[kSumRows];
  KVANT_UNROLL
  for (int r = 0; r < kSumRows; ++r) {
    zero[r] = sum[r] = magnitude[r] = V::Set(0.0F);
  }
  const float* q = rows.pair.q + size_t{first_row} * task.head_dim;
  for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
    const auto key_scale = V::Load(pairs.key_scale + c);
    const auto key_zero = V::Load(pairs.key_zero + c);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto value = V::Load(q + size_t(r) * task.head_dim + c);
      const auto scaled = V::Mul(value, key_scale);
      zero[r] = V::Fma(value, key_zero, zero[r]);
      sum[r] = V::Add(sum[r], scaled);
      magnitude[r] = V::Add(magnitude[r], V::Abs(scaled));
    }
  }
  float zeros[kSumRows];
  float totals[kSumRows];
  float magnitudes[kSumRows];
  SumFour(zero, zeros);
  SumFour(sum, totals);
  SumFour(magnitude, magnitudes);
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float largest = 0.5F * (magnitudes[r] + (totals[r] < 0 ? -totals[r] : totals[r])) + kLeastSum;
    rows.pair.x_scale[first_row + r] = largest / kFullSum;
    rows.pair.x_zero[first_row + r] = zeros[r];
  }
}

/// q times the page's scales as words, so fine that their largest sum just fits 16 bits.
template <int kRows>
void CutRows(const PairTask& task, const PairMemory& pairs, uint32_t first_row, RowBlock& rows) {
  V::F inverse[kRows];
  V::I middle[kSumRows] = {V::SetInt(0), V::SetInt(0), V::SetInt(0), V::SetInt(0)};
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    inverse[r] = V::Set(1.0F / rows.pair.x_scale[first_row + r]);
  }
  const float* q = rows.pair.q + size_t{first_row} * task.head_dim;
  uint32_t c = 0;
  for (; c < task.head_dim; c += 2 * V::kLanes) {
    const bool has_high = c + V::kLanes < task.head_dim;
    const auto low_scale = V::Load(pairs.key_scale + c);
    const auto high_scale = has_high ? V::Load(pairs.key_scale + c + V::kLanes) : V::Set(0.0F);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float* at = q + size_t(r) * task.head_dim + c;
      const auto low = V::Round(V::Mul(V::Mul(V::Load(at), inverse[r]), low_scale));
      const auto high = V::Round(V::Mul(V::Mul(V::Load(at + (has_high ? V::kLanes : 0)), inverse[r]), high_scale));
      const __m512i words = Words(low, high);
      middle[r] = V::DotPairs(middle[r], words, _mm512_load_si512(pairs.key_middle + c));
      _mm512_storeu_si512(XOf(rows, first_row + r) + c, words);
    }
  }
  V::F middles[kSumRows];
  KVANT_UNROLL
  for (int r = 0; r < kSumRows; ++r) {
    middles[r] = V::ToFloats(middle[r]);
  }
  float sums[kSumRows];
  SumFour(middles, sums);
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + r;
    _mm512_storeu_si512(XOf(rows, row) + c, _mm512_setzero_si512());
    rows.pair.x_zero[row] -= 0.5F * sums[r] * rows.pair.x_scale[row];
  }
}

inline void CutAllRows(const PairTask& task, const PairMemory& pairs, RowBlock& rows) {
  const RowRun all{0, rows.num_rows};
  ForRows<1>(all, [&](auto count, uint32_t row) { MeasureRows<decltype(count)::value>(task, pairs, row, rows); });
  ForRows<1>(all, [&](auto count, uint32_t row) { CutRows<decltype(count)::value>(task, pairs, row, rows); });
}

template <int kRows, int kBlocks>
void AddKeySums(const LookUps& what, bool is_first, uint32_t first_row, uint32_t first_block, PairMemory& pairs,
                Fetch& fetch) {
  const auto sums = [&](int r, int b) { return pairs.sums[first_row + r][first_block + b]; };
  __m512i acc[kRows][kBlocks][2];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      acc[r][b][0] = is_first ? _mm512_setzero_si512() : _mm512_load_si512(sums(r, b)[0]);
      acc[r][b][1] = is_first ? _mm512_setzero_si512() : _mm512_load_si512(sums(r, b)[1]);
    }
  }
  Fetch next = fetch;
  LookUp<kRows, kBlocks>(what, acc, next);
  fetch = next;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      _mm512_store_si512(sums(r, b)[0], acc[r][b][0]);
      _mm512_store_si512(sums(r, b)[1], acc[r][b][1]);
    }
  }
}

/// Sums of bits of every plane: runs of places of one width, the widest first.
inline void LookUpKeys(const PairTask& task, const RowRun& run, PairMemory& pairs, RowBlock& rows, Fetch& fetch) {
  constexpr uint32_t kMost = 6;  // blocks at once
  for (uint32_t i = 0; i < run.count; ++i) {
    MakeTables(XOf(rows, run.first + i), Steps(task.head_dim), pairs.tables[i][0]);
  }
  const uint32_t halves = Halves(task);
  const uint8_t* indexes = pairs.indexes.keys;
  for (uint32_t place = 0; place < task.head_dim;) {
    uint32_t end = place;
    while (end < task.head_dim && task.widths[end] == task.widths[place]) {
      end += kSix;
    }
    const uint32_t steps = (end - place) / kSix;
    const uint32_t blocks = task.widths[place] * halves;
    for (uint32_t first = 0; first < blocks; first += kMost / 2 * halves) {
      const uint32_t left = blocks - first;
      WithCount<kMost>(left < kMost / 2 * halves ? left : kMost / 2 * halves, [&](auto num_blocks) {
        constexpr int kBlocks = decltype(num_blocks)::value;
        ForRows<kBlocks>(run, [&](auto num_rows, uint32_t row) {
          const LookUps what{XOf(rows, row) + place,
                             kXRow,
                             pairs.tables[row - run.first][place / kSix],
                             sizeof pairs.tables[0] / 2,
                             indexes + first * kBlockColumns,
                             blocks * kBlockColumns,
                             steps,
                             rows.num_rows < kFewRows};
          AddKeySums<decltype(num_rows)::value, kBlocks>(what, place == 0, row, first, pairs, fetch);
        });
      });
    }
    indexes += steps * blocks * kBlockColumns;
    place = end;
  }
}

/// Planes of a row with their powers of two, in the order of logits. The highest planes are bit 3 of the codes.
template <int kLevels, int kVectors>
[[gnu::always_inline]] inline void JoinPlanes(const int16_t (&sums)[kMaxKeyBlocks][2][32], V::F (&joined)[kVectors]) {
  constexpr int kHalves = kVectors / 4;
  KVANT_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    KVANT_UNROLL
    for (int k = 0; k < 2; ++k) {
      __m512i even = _mm512_setzero_si512();
      __m512i odd = _mm512_setzero_si512();
      KVANT_UNROLL
      for (int level = 0; level < kLevels; ++level) {
        const __m512i plane = _mm512_load_si512(sums[level * kHalves + h][k]);
        even = _mm512_dpwssd_epi32(even, plane, _mm512_set1_epi32(8 >> level));
        odd = _mm512_dpwssd_epi32(odd, plane, _mm512_set1_epi32(8 << 16 >> level));
      }
      joined[h * 4 + k] = V::ToFloats(even);
      joined[h * 4 + k + 2] = V::ToFloats(odd);
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
