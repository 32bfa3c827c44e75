#include "kernels/cpu/attend_softmax.h"
#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/pair_look_up_avx512.h"
#include "kernels/cpu/pair_parts.h"

// Attention to one page of pair-mixed codes (docs/format/pair-pages.md) by look-ups. A page is turned into indexes
// once, in the nearest cache, and met by all rows: six places or six tokens at a time, plane by plane.
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

uint32_t Halves(const PairTask& task) { return task.page_tokens > kBlockColumns ? 2 : 1; }
uint32_t Positions(const PairTask& task) { return Halves(task) * kBlockColumns; }
uint32_t Steps(uint32_t numbers) { return (numbers + kSix - 1) / kSix; }

constexpr uint32_t TokenOfLogit(uint32_t i) { return i / 64 * 64 + i % 16 * 4 + i % 64 / 16; }
/// Of weights as words: vectors are narrowed in pairs, four lanes of one after four of the other.
constexpr uint32_t TokenOfWord(uint32_t i) {
  return i / 64 * 64 + i % 32 / 8 * 16 + i % 4 * 4 + i / 32 % 2 * 2 + i % 8 / 4;
}
struct WordOrder {
  uint8_t token[kMaxTokenSixes * kSix];
};
constexpr WordOrder kWordOrder = [] {
  WordOrder order{};
  for (uint32_t i = 0; i < kMaxTokenSixes * kSix; ++i) {
    order.token[i] = static_cast<uint8_t>(TokenOfWord(i));
  }
  return order;
}();

uint32_t ValueRowBytes(const PairTask& task) { return task.head_dim * task.value_bits / 8; }
uint32_t ValueStepBytes(const PairTask& task) { return (ValueRowBytes(task) + 15) / 16 * 128; }
/// Sums that a block of columns gives: one a channel, (3 bits) one a column, or (8 bits) one for each half of a code.
constexpr uint32_t BlockPlaces(uint32_t value_bits) { return value_bits == 2 ? 32 : value_bits == 3 ? 64 : 16; }
uint32_t ValuePlaces(const PairTask& task) {
  return (task.head_dim * task.value_bits + kBlockColumns - 1) / kBlockColumns * BlockPlaces(task.value_bits);
}

/// 64 channels a look-up; reads up to 126 bytes beyond the last.
__m512i LookUpHalves(const std::byte* halves, __m512i places) {
  return _mm512_permutex2var_epi16(_mm512_loadu_si512(halves), places, _mm512_loadu_si512(halves + 64));
}

void PlaceHalves(const PairTask& task, const std::byte* by_channel, float* by_place) {
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

void LoadKeys(const PairTask& task, PairMemory& pairs) {
  const size_t plane_bytes = task.page_tokens / 8;
  const bool two_halves = Halves(task) == 2;
  const uint16_t* six = task.sixes;
  uint8_t* to = pairs.indexes.keys;
  for (uint32_t place = 0; place < task.head_dim; place += kSix) {
    for (uint32_t level = 0; level < task.widths[place]; ++level, six += kSix) {
      uint32_t count = kSix;
      while (six[count - 1] == PairTask::kNoPlane) {
        --count;
      }
      __m512i indexes[2];
      WithCount<6>(count, [&](auto num_planes) {
        constexpr int kPlanes = decltype(num_planes)::value;
        const std::byte* rows[kSix] = {};
        KVANT_UNROLL
        for (int i = 0; i < kPlanes; ++i) {
          rows[i] = task.page + six[i] * plane_bytes;
        }
        MakeIndexes<kPlanes>(rows, 0, indexes);
      });
      _mm512_store_si512(to, indexes[0]);
      if (two_halves) {
        _mm512_store_si512(to + kBlockColumns, indexes[1]);
        to += kBlockColumns;
      }
      to += kBlockColumns;
    }
  }
}

void LoadValues(const PairTask& task, PairMemory& pairs) {
  const size_t row_bytes = ValueRowBytes(task);
  const std::byte* codes = task.page + task.value_codes;
  uint8_t* to = pairs.indexes.values;
  for (uint32_t first = 0; first < Positions(task); first += kSix) {
    const std::byte* rows[kSix];
    for (uint32_t i = 0; i < kSix; ++i) {
      const uint32_t token = kWordOrder.token[first + i];  // where there is none, its weight is 0
      rows[i] = codes + (token < task.page_tokens ? token : 0) * row_bytes;
    }
    for (size_t at = 0; at < row_bytes; at += 16, to += 128) {
      __m512i indexes[2];
      MakeIndexes<6>(rows, at, indexes);
      _mm512_store_si512(to, indexes[0]);
      _mm512_store_si512(to + kBlockColumns, indexes[1]);
    }
  }
}

/// Numbers of tokens in the order of logits.
void StoreOrdered(const PairTask& task, const Half* params, float* dst) {
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
__m512i Words(__m512i low, __m512i high) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(low, high));
}

/// What is cut off of q times a scale is to meet codes around 0 only: zeros are moved to the middle of the codes.
void CentreKeys(const PairTask& task, PairMemory& pairs) {
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

void LoadPairPage(const PairTask& task, PairMemory& pairs, StretchMemory& /*memory*/) {
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

int16_t* XOf(RowBlock& rows, uint32_t row) { return reinterpret_cast<int16_t*>(rows.pair.x) + row * kXRow; }
int16_t* PxOf(const PairTask& task, PairMemory& pairs, uint32_t row, uint32_t group) {
  return reinterpret_cast<int16_t*>(pairs.px[row * task.value_groups + group]);
}

constexpr int kSumRows = 4;  ///< rows that are summed up together

/// Lanes of each vector summed up, whatever the others hold.
void SumFour(const V::F (&v)[kSumRows], float* sums) {
  const auto add = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
  const __m512d first = _mm512_castps_pd(add(v[0], v[2]));
  const __m512d second = _mm512_castps_pd(add(v[1], v[3]));
  const __m512 all = add(_mm512_castpd_ps(first), _mm512_castpd_ps(second));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

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

void CutAllRows(const PairTask& task, const PairMemory& pairs, RowBlock& rows) {
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
void LookUpKeys(const PairTask& task, const RowRun& run, PairMemory& pairs, RowBlock& rows, Fetch& fetch) {
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

/// Planes with their powers of two, and the row's scale and zero; the largest logit. The highest planes are bit 3 of
/// the codes.
template <int kLevels>
float MakeLogits(uint32_t halves, const RowBlock& rows, uint32_t row, PairMemory& pairs) {
  const auto scale = V::Set(rows.pair.x_scale[row]);
  const auto zero = V::Set(rows.pair.x_zero[row]);
  auto largest = V::Set(-__builtin_inff());
  for (uint32_t h = 0; h < halves; ++h) {
    for (uint32_t k = 0; k < 2; ++k) {
      __m512i even = _mm512_setzero_si512();
      __m512i odd = _mm512_setzero_si512();
      KVANT_UNROLL
      for (int level = 0; level < kLevels; ++level) {
        const __m512i sums = _mm512_load_si512(pairs.sums[row][level * halves + h][k]);
        even = _mm512_dpwssd_epi32(even, sums, _mm512_set1_epi32(8 >> level));
        odd = _mm512_dpwssd_epi32(odd, sums, _mm512_set1_epi32(8 << 16 >> level));
      }
      const auto first = V::Fma(V::ToFloats(even), scale, zero);
      const auto second = V::Fma(V::ToFloats(odd), scale, zero);
      float* logit = pairs.logit[row] + h * kBlockColumns + k * V::kLanes;
      V::Store(logit, first);
      V::Store(logit + 2 * V::kLanes, second);
      largest = V::Max(largest, V::Max(first, second));
    }
  }
  return V::Largest(largest);
}

/// Logits of all rows as they see the page, and the largest of each.
void MakeAllLogits(const PairTask& task, const RowBlock& rows, PairMemory& pairs, float* max) {
  const uint32_t positions = Positions(task);
  WithCount<kMaxKeyBits>(task.widths[0], [&](auto levels) {
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      max[row] = MakeLogits<decltype(levels)::value>(Halves(task), rows, row, pairs);
    }
  });
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    float* logits = pairs.logit[row];
    if (rows.cap_bits > 0.0F) {
      CapRow<V>(rows.cap_bits, positions, logits);
    }
    if (rows.cap_bits > 0.0F || rows.hidden[row] > 0 || rows.visible[row] < positions) {
      max[row] = MaskPairRow<V>(rows.hidden[row], rows.visible[row], positions, TokenOfLogit, logits);
    }
  }
}

/// 2^x for x <= 0 to 9e-5 relative, nearly 0 where x < -100: the polynomial of degree 3 through (0, 1) with the
/// smallest largest relative error on [0, 1].
[[gnu::always_inline]] inline __m512 PairExp2(__m512 x) {
  const __m512 least = _mm512_max_ps(x, _mm512_set1_ps(-100.0F));
  const __m512 r = _mm512_reduce_ps(least, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.0770670420F), _mm512_set1_ps(0.227644991F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.695116786F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, least);
}

/// Logits of one row become weights relative to its largest in the page. Adds their sum, times `factor`, to the row's.
template <int kVectors>
void WeighRow(float reference, float factor, float* p, float* row_sum) {
  const auto minus_reference = V::Set(-reference);
  auto sum = V::Set(0.0F);
  KVANT_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const auto weight = PairExp2(V::Add(V::Load(p + i * V::kLanes), minus_reference));
    sum = V::Add(sum, weight);
    V::Store(p + i * V::kLanes, weight);
  }
  V::Store(row_sum, V::Fma(sum, V::Set(factor), V::Load(row_sum)));
}

float* ZerosOf(const PairTask& task, RowBlock& rows, uint32_t row, uint32_t group) {
  return rows.pair.zero + (size_t{row} * task.value_groups + group) * kMaxLanes;
}
float MiddleOf(const PairTask& task) { return 0.5F * static_cast<float>((1U << task.value_bits) - 1); }

/// Sums of weights times one group's value scales: p_scale. Adds those of weight · value zero, times `factor`, to the
/// rows', as if zeros were at the middle of the codes: what is cut off is to meet codes around 0 only.
template <int kRows>
void MeasureWeights(const PairTask& task, uint32_t first_row, uint32_t group, const float* factor, RowBlock& rows,
                    PairMemory& pairs) {
  V::F zero[kRows];
  V::F total[kSumRows];
  KVANT_UNROLL
  for (int r = 0; r < kSumRows; ++r) {
    total[r] = V::Set(0.0F);
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    zero[r] = V::Set(0.0F);
  }
  for (uint32_t i = 0; i < Positions(task); i += V::kLanes) {
    const auto value_zero = V::Load(pairs.value_zero[group] + i);
    const auto value_scale = V::Load(pairs.value_scale[group] + i);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto weight = V::Load(pairs.logit[first_row + r] + i);
      zero[r] = V::Fma(weight, value_zero, zero[r]);
      total[r] = V::Fma(weight, value_scale, total[r]);
    }
  }
  float totals[kSumRows];
  SumFour(total, totals);
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + static_cast<uint32_t>(r);
    const auto sum = V::Fma(total[r], V::Set(MiddleOf(task)), zero[r]);
    float* zeros = ZerosOf(task, rows, row, group);
    V::Store(zeros, V::Fma(sum, V::Set(factor[row]), V::Load(zeros)));
    pairs.p_scale[row][group] = totals[r] + kLeastSum;
  }
}

/// Weights times one group's value scales as words, as fine as 16 bits allow their sum; p_scale becomes their unit
/// times `factor`. Takes the middle of the codes back from the sums of zeros.
template <int kRows>
void CutWeights(const PairTask& task, uint32_t first_row, uint32_t group, const float* factor, RowBlock& rows,
                PairMemory& pairs) {
  V::F inverse[kRows];
  V::I cut[kRows];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    inverse[r] = V::Set(kFullWeights / pairs.p_scale[first_row + r][group]);
    cut[r] = V::SetInt(0);
  }
  uint32_t i = 0;
  for (; i < Positions(task); i += 2 * V::kLanes) {
    const auto low = V::Load(pairs.value_scale[group] + i);
    const auto high = V::Load(pairs.value_scale[group] + i + V::kLanes);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float* p = pairs.logit[first_row + r] + i;
      const auto first = V::Round(V::Mul(V::Mul(V::Load(p), inverse[r]), low));
      const auto second = V::Round(V::Mul(V::Mul(V::Load(p + V::kLanes), inverse[r]), high));
      const __m512i words = _mm512_packus_epi32(first, second);
      cut[r] = V::AddInt(cut[r], V::AddInt(first, second));
      _mm512_store_si512(PxOf(task, pairs, first_row + r, group) + i, words);
    }
  }
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + static_cast<uint32_t>(r);
    _mm256_store_si256(reinterpret_cast<__m256i*>(PxOf(task, pairs, row, group) + i), _mm256_setzero_si256());
    const float unit = pairs.p_scale[row][group] * factor[row] / kFullWeights;
    float* zeros = ZerosOf(task, rows, row, group);
    V::Store(zeros, V::Fma(V::ToFloats(cut[r]), V::Set(-MiddleOf(task) * unit), V::Load(zeros)));
    pairs.p_scale[row][group] = unit;
  }
}

/// The weights of all rows, step by step: what one row waits for, others fill.
template <int kVectors>
void WeighRows(const PairTask& task, const float* max, const float* factor, RowBlock& rows, PairMemory& pairs) {
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    WeighRow<kVectors>(max[row], factor[row], pairs.logit[row], rows.sum[row]);
  }
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    ForRows<1>({0, rows.num_rows}, [&](auto count, uint32_t row) {
      MeasureWeights<decltype(count)::value>(task, row, g, factor, rows, pairs);
    });
    ForRows<1>({0, rows.num_rows}, [&](auto count, uint32_t row) {
      CutWeights<decltype(count)::value>(task, row, g, factor, rows, pairs);
    });
  }
}

void MakeWeights(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  float max[kRowBlock];
  MakeAllLogits(task, rows, pairs, max);
  alignas(64) float factor[kMaxLanes] = {};
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (max[row] > rows.max[row]) {
      RaiseMax<V>(max[row], rows.out_channels, rows, row);
    }
    if (rows.visible[row] > rows.hidden[row]) {
      factor[row] = max[row] - rows.max[row];
    } else {
      factor[row] = -1000.0F;  // 0 as a power of two
      max[row] = 0.0F;
    }
    FetchAhead<2, 1>(memory.fetch);
  }
  V::Store(factor, Exp2<V>(V::Load(factor)));
  Halves(task) == 2 ? WeighRows<8>(task, max, factor, rows, pairs) : WeighRows<4>(task, max, factor, rows, pairs);
}

/// What a block of columns adds to the places of a row: planes with their powers of two. `lanes` are the group's.
template <int kBits>
[[gnu::always_inline]] inline void AddPlaces(const __m512i (&sums)[2], V::F scale, __mmask16 lanes, float* out) {
  const auto add = [&](uint32_t vector, __m512i begin, __m512i even, __m512i odd) {
    const auto dot = V::ToFloats(_mm512_dpwssd_epi32(_mm512_dpwssd_epi32(begin, sums[0], even), sums[1], odd));
    float* at = out + vector * V::kLanes;
    V::Store(at, _mm512_mask3_fmadd_ps(dot, scale, V::Load(at), lanes));
  };
  if constexpr (kBits == 2) {
    add(0, V::SetInt(kHalf * 3), V::SetInt(1), V::SetInt(2));
    add(1, V::SetInt(kHalf * 3), V::SetInt(1 << 16), V::SetInt(2 << 16));
  } else if constexpr (kBits == 3) {
    add(0, V::SetInt(kHalf), V::SetInt(1), V::SetInt(0));
    add(1, V::SetInt(kHalf), V::SetInt(0), V::SetInt(1));
    add(2, V::SetInt(kHalf), V::SetInt(1 << 16), V::SetInt(0));
    add(3, V::SetInt(kHalf), V::SetInt(0), V::SetInt(1 << 16));
  } else {
    const int64_t begin = int64_t{kBits == 8 ? kHalf * 0xF0 : kHalf * 0xF} << 32 | kHalf * 0xF;
    const auto even = _mm512_set1_epi64((kBits == 8 ? 0x0040001000000000 : 0x0004000100000000) | 0x00040001);
    add(0, _mm512_set1_epi64(begin), even, _mm512_slli_epi16(even, 1));
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
  __m512i acc[kRows][kBlocks][2];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      acc[r][b][0] = _mm512_set1_epi16(static_cast<int16_t>(-kHalf));
      acc[r][b][1] = _mm512_set1_epi16(static_cast<int16_t>(-kHalf));
    }
  }
  Fetch next = fetch;
  LookUp<kRows, kBlocks>(what, acc, next);
  fetch = next;
  const auto columns = static_cast<int32_t>(task.value_group * kBits);
  KVANT_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t block = first_block + static_cast<uint32_t>(b);
    const auto begin = static_cast<int32_t>(block * kBlockColumns);
    const __mmask16 lanes = GroupLanes(static_cast<int32_t>(group) * columns - begin, columns);
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row = first_row + static_cast<uint32_t>(r);
      float* out = rows.pair.out + size_t{row} * rows.pair.value_places + block * BlockPlaces(kBits);
      AddPlaces<kBits>(acc[r][b], V::Set(pairs.p_scale[row][group]), lanes, out);
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

void AttendPairPage(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  CutAllRows(task, pairs, rows);
  ForRuns(rows.num_rows, [&](const RowRun& run) { LookUpKeys(task, run, pairs, rows, memory.fetch); });
  MakeWeights(task, rows, pairs, memory);
  const auto look_up = task.value_bits == 2   ? LookUpValues<2>
                       : task.value_bits == 3 ? LookUpValues<3>
                       : task.value_bits == 4 ? LookUpValues<4>
                                              : LookUpValues<8>;
  ForRuns(rows.num_rows, [&](const RowRun& run) { look_up(task, run, pairs, rows, memory.fetch); });
}

/// Sums by place to sums by channel.
void OrderValues(const PairTask& task, const float* places, float* channels) {
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

void FinishPairRows(const PairTask& task, bool rotated, RowBlock& rows) {
  alignas(64) float channels[codec::kMaxHeadDim + V::kLanes];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    OrderValues(task, rows.pair.out + size_t{row} * rows.pair.value_places, channels);
    FinishPairRow<V>(task, rotated, row, channels, rows);
  }
}

}  // namespace

const PairKernels kPairAvx512 = {ValuePlaces, PreparePairRows, LoadPairPage, AttendPairPage, FinishPairRows};

}  // namespace kvant::kernels
