#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attend_common.h"

// Sums of numbers chosen by bits, for AVX-512 with VBMI and GFNI. Codes are taken plane by plane: Σ x·code is a sum of
// powers of two times Σ x·bit, and six numbers have 64 sums, which two registers hold as 16-bit words. One look-up
// gives 32 columns (tokens of keys, bits of values) the sum that six rows of bits choose.
//
// An index is a byte a column: bit i of it is the column's bit in row i, bits 6 and 7 are not looked at. Of a block, 64
// columns, the even ones are the low bytes of words; a load one byte further on has the odd ones there.
namespace kvant::kernels {
namespace {

constexpr uint32_t kSix = 6;
constexpr uint32_t kBlockColumns = 64;
constexpr size_t kIndexPad = 1;  ///< bytes that are read beyond the last index

/// Indexes of 128 columns from 16 bytes of each of six rows.
[[gnu::always_inline]] inline void MakeIndexes(const std::byte* const (&rows)[kSix], size_t at, __m512i (&indexes)[2]) {
  const auto row = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + at)); };
  const auto two = [&](int i) { return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 1), 1); };
  const __m512i first = _mm512_inserti64x4(_mm512_castsi256_si512(two(0)), two(2), 1);
  const __m512i last = _mm512_castsi256_si512(two(4));
  // A matrix of 8 x 8 bits is turned around by multiplying rows of the unit matrix with it; row 7 comes first.
  const __m512i unit = _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201));
  const __m512i columns =
      _mm512_add_epi8(_mm512_set1_epi64(0x0010203040505050),
                      _mm512_set_epi64(0x0707070707070707, 0x0606060606060606, 0x0505050505050505, 0x0404040404040404,
                                       0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
  const __m512i next = _mm512_add_epi8(columns, _mm512_set1_epi8(8));
  indexes[0] = _mm512_gf2p8affine_epi64_epi8(unit, _mm512_permutex2var_epi8(first, columns, last), 0);
  indexes[1] = _mm512_gf2p8affine_epi64_epi8(unit, _mm512_permutex2var_epi8(first, next, last), 0);
}

/// A table: the sums of the first five of six numbers, by bits 0 to 4 of a word's place. With the sixth added it serves
/// where bit 5 is set.
constexpr size_t kTableWords = 32;

/// Tables of x, six numbers each.
inline void MakeTables(const int16_t* x, uint32_t steps, int16_t* tables) {
  for (uint32_t i = 0; i < steps; ++i, x += kSix, tables += kTableWords) {
    const auto number = [x](int n) { return _mm512_set1_epi16(x[n]); };
    __m512i sums = _mm512_maskz_mov_epi16(0xAAAAAAAA, number(0));
    sums = _mm512_mask_add_epi16(sums, 0xCCCCCCCC, sums, number(1));
    sums = _mm512_mask_add_epi16(sums, 0xF0F0F0F0, sums, number(2));
    sums = _mm512_mask_add_epi16(sums, 0xFF00FF00, sums, number(3));
    sums = _mm512_mask_add_epi16(sums, 0xFFFF0000, sums, number(4));
    _mm512_store_si512(tables, sums);
  }
}

/// Keeps a value in a register and its making where it stands: GCC otherwise looks everything up first and spills.
[[gnu::always_inline]] inline void Pin(__m512i& value) { asm volatile("" : "+v"(value)); }

[[gnu::always_inline]] inline void Add(__m512i sums, __m512i& acc) {
  asm volatile("vpaddw %1, %0, %0" : "+v"(acc) : "v"(sums));
}

/// What rows look up.
struct LookUps {
  const int16_t* x;  ///< of the first row, as MakeTables has it
  size_t x_row;      ///< words between rows
  const int16_t* tables;
  size_t table_row;
  const uint8_t* indexes;
  size_t step_bytes;  ///< of indexes, between steps
  uint32_t steps;
  bool few_rows;  ///< then a page has few steps, and each asks for more lines of the next
};

/// acc[r][b][k] += the sums that the indexes of block b, even columns (k = 0) or odd ones, choose of row r.
template <int kRows, int kBlocks>
[[gnu::always_inline]] inline void LookUp(const LookUps& what, __m512i (&acc)[kRows][kBlocks][2], Fetch& fetch) {
  const int16_t* sixth = what.x + kSix - 1;
  const int16_t* tables = what.tables;
  const uint8_t* indexes = what.indexes;
  uint32_t step = 0;
  do {
    __m512i low[kRows];
    __m512i high[kRows];
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      low[r] = _mm512_load_si512(tables + r * what.table_row);
      high[r] = _mm512_add_epi16(low[r], _mm512_set1_epi16(sixth[r * what.x_row]));
    }
    FetchAhead<1>(fetch);
    if (what.few_rows) {
      FetchAhead<2>(fetch);
    }
    KVANT_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      __m512i even = _mm512_load_si512(indexes + b * kBlockColumns);
      __m512i odd = _mm512_loadu_si512(indexes + b * kBlockColumns + 1);
      Pin(even);
      Pin(odd);
      __m512i sums[kRows][2];
      KVANT_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[r][0] = _mm512_permutex2var_epi16(low[r], even, high[r]);
        sums[r][1] = _mm512_permutex2var_epi16(low[r], odd, high[r]);
        Pin(sums[r][0]);
        Pin(sums[r][1]);
      }
      KVANT_UNROLL
      for (int r = 0; r < kRows; ++r) {
        Add(sums[r][0], acc[r][b][0]);
        Add(sums[r][1], acc[r][b][1]);
      }
    }
    sixth += kSix;
    tables += kTableWords;
    indexes += what.step_bytes;
  } while (++step < what.steps);
}

}  // namespace
}  // namespace kvant::kernels
