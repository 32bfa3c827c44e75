#pragma once

#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/pair_look_up_avx512.h"

// What the steps of attention to a page by look-ups share (attend_pair_avx512.cc).
//
// Logits of 64 tokens stand in four vectors: lane i of vector r has token 4i + r.
namespace kvant::kernels {
namespace {

using V = LanesAvx512;
/// Of the largest sum that x can have either way, so that 16 bits hold it whatever is rounded.
constexpr float kFullSum = 32600.0F;
constexpr float kFullWeights = 65200.0F;  ///< the same of weights, which have one sign: their sums begin at -kHalf
constexpr int32_t kHalf = 0x8000;
constexpr float kLeastSum = 1e-30F;  ///< instead of 0
constexpr uint32_t kFewRows = 5;
constexpr size_t kXRow = 2 * kPairXWords;
constexpr size_t kPxRow = 2 * kPxWords;

inline uint32_t Halves(const PairTask& task) { return task.page_tokens > kBlockColumns ? 2 : 1; }
inline uint32_t Positions(const PairTask& task) { return Halves(task) * kBlockColumns; }
inline uint32_t Steps(uint32_t numbers) { return (numbers + kSix - 1) / kSix; }

constexpr uint32_t TokenOfLogit(uint32_t i) { return i / 64 * 64 + i % 16 * 4 + i % 64 / 16; }
struct WordOrder {
  uint8_t token[kMaxTokenSixes * kSix];
};
constexpr WordOrder kWordOrder = [] {
  WordOrder order{};
  for (uint32_t i = 0; i < kMaxTokenSixes * kSix; ++i) {
    order.token[i] = static_cast<uint8_t>(TokenOfLogit(i));
  }
  return order;
}();

inline uint32_t ValueRowBytes(const PairTask& task) { return task.head_dim * task.value_bits / 8; }
inline uint32_t ValueStepBytes(const PairTask& task) { return (ValueRowBytes(task) + 15) / 16 * 128; }
/// Sums that a block of columns gives: one a channel, (3 bits) one a column, or (8 bits) one for each half of a code.
constexpr uint32_t BlockPlaces(uint32_t value_bits) { return value_bits == 2 ? 32 : value_bits == 3 ? 64 : 16; }
inline uint32_t ValuePlaces(const PairTask& task) {
  return (task.head_dim * task.value_bits + kBlockColumns - 1) / kBlockColumns * BlockPlaces(task.value_bits);
}

/// Rows whose sums over kBlocks blocks fit the registers.
template <int kBlocks>
constexpr int kRowsOf = kBlocks <= 2 ? 4 : 2;

/// Rows that follow each other, with their tables.
struct RowRun {
  uint32_t first;
  uint32_t count;
};

/// Calls body(rows, first_row) until all rows of a run are covered.
template <int kBlocks, class Body>
void ForRows(const RowRun& run, const Body& body) {
  for (uint32_t row = 0; row < run.count; row += kRowsOf<kBlocks>) {
    const uint32_t left = run.count - row;
    WithCount<kRowsOf<kBlocks>>(left < kRowsOf<kBlocks> ? left : kRowsOf<kBlocks>,
                                [&](auto count) { body(count, run.first + row); });
  }
}

/// Calls body(run) until all rows are covered, with as many as there is room for tables.
template <class Body>
void ForRuns(uint32_t num_rows, const Body& body) {
  for (uint32_t row = 0; row < num_rows; row += kTableRows) {
    body(RowRun{row, num_rows - row < kTableRows ? num_rows - row : kTableRows});
  }
}

inline int16_t* XOf(RowBlock& rows, uint32_t row) { return reinterpret_cast<int16_t*>(rows.pair.x) + row * kXRow; }
inline int16_t* PxOf(const PairTask& task, PairMemory& pairs, uint32_t row, uint32_t group) {
  return reinterpret_cast<int16_t*>(pairs.px[row * task.value_groups + group]);
}

constexpr int kSumRows = 4;  ///< rows that are summed up together

/// Lanes of each vector summed up, whatever the others hold.
inline void SumFour(const V::F (&v)[kSumRows], float* sums) {
  const auto add = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
  const __m512d first = _mm512_castps_pd(add(v[0], v[2]));
  const __m512d second = _mm512_castps_pd(add(v[1], v[3]));
  const __m512 all = add(_mm512_castpd_ps(first), _mm512_castpd_ps(second));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

}  // namespace
}  // namespace kvant::kernels
