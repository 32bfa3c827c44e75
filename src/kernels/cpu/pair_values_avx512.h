#pragma once

#include "kernels/cpu/pair_common_avx512.h"

// Weights of a page, whose sums the values' bits look up.
namespace kvant::kernels {
namespace {

/// What a block of columns adds to the places of a row: planes with their powers of two. `lanes` are the group's.
template <int kBits>
[[gnu::always_inline]] inline void AddPlaces(const __m512i (&sums)[2], V::F scale, __mmask16 lanes, float* out) {
  const auto dot = [&sums](__m512i begin, __m512i even, __m512i odd) {
    return V::ToFloats(_mm512_dpwssd_epi32(_mm512_dpwssd_epi32(begin, sums[0], even), sums[1], odd));
  };
  const auto add = [scale, lanes](V::F places, float* at) {
    V::Store(at, _mm512_mask3_fmadd_ps(places, scale, V::Load(at), lanes));
  };
  if constexpr (kBits == 2) {
    const auto begin = V::SetInt(kHalf * 3);
    const auto first = dot(begin, V::SetInt(1), V::SetInt(2));
    const auto second = dot(begin, V::SetInt(1 << 16), V::SetInt(2 << 16));
    add(first, out);
    add(second, out + V::kLanes);
  } else if constexpr (kBits == 3) {
    for (int k = 0; k < 2; ++k) {
      add(V::ToFloats(_mm512_dpwssd_epi32(V::SetInt(kHalf), sums[k], V::SetInt(1))), out + k * 16);
      add(V::ToFloats(_mm512_dpwssd_epi32(V::SetInt(kHalf), sums[k], V::SetInt(1 << 16))), out + k * 16 + 32);
    }
  } else {
    const int64_t begin = int64_t{kBits == 8 ? kHalf * 0xF0 : kHalf * 0xF} << 32 | kHalf * 0xF;
    const auto even = _mm512_set1_epi64((kBits == 8 ? 0x0040001000000000 : 0x0004000100000000) | 0x00040001);
    add(dot(_mm512_set1_epi64(begin), even, _mm512_slli_epi16(even, 1)), out);
  }
}

/// Lanes of a block, of four columns each, that lie in a group of values: `first` is the group's first column, counted
/// from the block's.
inline __mmask16 GroupLanes(int32_t first, int32_t columns) {
  const auto below = [](int32_t column) { return (1U << (column < 0 ? 0 : column > 64 ? 16 : column / 4)) - 1; };
  return static_cast<__mmask16>(below(first + columns) & ~below(first));
}

template <int kBits, int kRows, int kBlocks>
void AddValues(const PairTask& task, const LookUps& what, PairMemory& pairs, RowBlock& rows, uint32_t first_row,
               uint32_t group, uint32_t first_block, Fetch& fetch) {
  const auto columns = static_cast<int32_t>(task.value_group * kBits);
  __mmask16 lanes[kBlocks];
  __m512i acc[kRows][kBlocks][2];
  KVANT_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    const int32_t begin = (static_cast<int32_t>(first_block) + b) * static_cast<int32_t>(kBlockColumns);
    lanes[b] = GroupLanes(static_cast<int32_t>(group) * columns - begin, columns);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][b][0] = _mm512_set1_epi16(static_cast<int16_t>(-kHalf));
      acc[r][b][1] = _mm512_set1_epi16(static_cast<int16_t>(-kHalf));
    }
  }
  Fetch next = fetch;
  LookUp<kRows, kBlocks>(what, acc, next);
  fetch = next;
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + static_cast<uint32_t>(r);
    const auto scale = V::Set(pairs.p_scale[row][group]);
    float* out = rows.pair.out + size_t{row} * rows.pair.value_places + first_block * BlockPlaces(kBits);
    KVANT_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      AddPlaces<kBits>(acc[r][b], scale, lanes[b], out + b * static_cast<int>(BlockPlaces(kBits)));
    }
  }
}

template <int kBits>
void LookUpValues(const PairTask& task, const RowRun& run, PairMemory& pairs, RowBlock& rows, Fetch& fetch) {
  constexpr uint32_t kMost = 4;  // blocks at once
  const uint32_t step_bytes = ValueStepBytes(task);
  const uint32_t steps = Steps(Positions(task));
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    for (uint32_t i = 0; i < run.count; ++i) {
      MakeTables(PxOf(task, pairs, run.first + i, g), steps, pairs.tables[i][0]);
    }
    const uint32_t columns = task.value_group * kBits;
    const uint32_t end = ((g + 1) * columns + kBlockColumns - 1) / kBlockColumns;
    for (uint32_t block = g * columns / kBlockColumns; block < end; block += kMost) {
      WithCount<kMost>(end - block < kMost ? end - block : kMost, [&](auto num_blocks) {
        constexpr int kBlocks = decltype(num_blocks)::value;
        ForRows<kBlocks>(run, [&](auto num_rows, uint32_t row) {
          const LookUps what{PxOf(task, pairs, row, g),
                             kPxRow * task.value_groups,
                             pairs.tables[row - run.first][0],
                             sizeof pairs.tables[0] / 2,
                             pairs.indexes.values + block * kBlockColumns,
                             step_bytes,
                             steps,
                             rows.num_rows < kFewRows};
          AddValues<kBits, decltype(num_rows)::value, kBlocks>(task, what, pairs, rows, row, g, block, fetch);
        });
      });
    }
  }
}

/// Sums by place to sums by channel.
inline void OrderValues(const PairTask& task, const float* places, float* channels) {
  switch (task.value_bits) {
    case 2: {
      const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
      const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
      for (uint32_t c = 0; c < task.head_dim; c += 2 * V::kLanes) {
        const auto even = V::Load(places + c);
        const auto odd = V::Load(places + c + V::kLanes);
        V::Store(channels + c, _mm512_permutex2var_ps(even, low, odd));
        V::Store(channels + c + V::kLanes, _mm512_permutex2var_ps(even, high, odd));
      }
      return;
    }
    case 3: {
      const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const auto column = [&](uint32_t first, uint32_t plane) {
        const __m512i n = _mm512_add_epi32(V::SetInt(static_cast<int32_t>(3 * first + plane)),
                                           _mm512_add_epi32(lanes, _mm512_add_epi32(lanes, lanes)));
        const __m512i lane = _mm512_and_si512(_mm512_srli_epi32(n, 2), V::SetInt(15));
        const __m512i vector = _mm512_or_si512(_mm512_and_si512(n, V::SetInt(~63)),
                                               _mm512_slli_epi32(_mm512_and_si512(n, V::SetInt(3)), 4));
        return _mm512_i32gather_ps(_mm512_or_si512(vector, lane), places, sizeof *places);
      };
      for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
        const auto high = V::Fma(column(c, 2), V::Set(2.0F), column(c, 1));
        V::Store(channels + c, V::Fma(high, V::Set(2.0F), column(c, 0)));
      }
      return;
    }
    case 4: __builtin_memcpy(channels, places, task.head_dim * sizeof *channels); return;
    default:
      for (uint32_t c = 0; c < task.head_dim; ++c) {
        channels[c] = places[2 * c] + places[2 * c + 1];
      }
  }
}

}  // namespace
}  // namespace kvant::kernels
