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

/// Bits of a value as they are looked up: three are spread to four when a page is loaded.
uint32_t ValuePlanes(const PairTask& task) { return task.value_bits == 3 ? 4 : task.value_bits; }
uint32_t ValueRowBytes(const PairTask& task) { return task.head_dim * ValuePlanes(task) / 8; }
uint32_t ValueStepBytes(const PairTask& task) { return (ValueRowBytes(task) + 15) / 16 * 128; }
/// Sums that a block of columns gives: one a channel, or (8 bits) one for each half of a code.
uint32_t BlockPlaces(uint32_t planes) { return planes == 2 ? 32 : 16; }
uint32_t ValuePlaces(const PairTask& task) {
  const uint32_t planes = ValuePlanes(task);
  return (task.head_dim * planes + kBlockColumns - 1) / kBlockColumns * BlockPlaces(planes);
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
  alignas(64) std::byte spread[kStretchTokens * codec::kMaxHeadDim / 2 + 16];
  if (task.value_bits == 3) {
    for (uint32_t t = 0; t < task.page_tokens; ++t) {
      SpreadRow(task.head_dim, codes + size_t{t} * task.head_dim * 3 / 8, spread + t * row_bytes);
    }
    codes = spread;
  }
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

/// Calls body(rows, first_row) until all rows are covered.
template <int kBlocks, class Body>
void ForRows(uint32_t num_rows, const Body& body) {
  for (uint32_t row = 0; row < num_rows; row += kRowsOf<kBlocks>) {
    const uint32_t left = num_rows - row;
    WithCount<kRowsOf<kBlocks>>(left < kRowsOf<kBlocks> ? left : kRowsOf<kBlocks>,
                                [&](auto count) { body(count, row); });
  }
}

int16_t* XOf(RowBlock& rows, uint32_t row) { return reinterpret_cast<int16_t*>(rows.pair.x) + row * kXRow; }
int16_t* PxOf(const PairTask& task, PairMemory& pairs, uint32_t row, uint32_t group) {
  return reinterpret_cast<int16_t*>(pairs.px[row * task.value_groups + group]);
}

/// Of rows, q · zeros and the largest sum that q times the page's scales can have either way.
template <int kRows>
void MeasureRows(const PairTask& task, const PairMemory& pairs, uint32_t first_row, RowBlock& rows) {
  V::F zero[kRows];
  V::F sum[kRows];
  V::F magnitude[kRows];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
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
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const float total = V::Sum(sum[r]);
    const float largest = 0.5F * (V::Sum(magnitude[r]) + (total < 0 ? -total : total)) + kLeastSum;
    rows.pair.x_scale[first_row + r] = largest / kFullSum;
    rows.pair.x_zero[first_row + r] = V::Sum(zero[r]);
  }
}

/// q times the page's scales as words, so fine that their largest sum just fits 16 bits.
template <int kRows>
void CutRows(const PairTask& task, const PairMemory& pairs, uint32_t first_row, RowBlock& rows) {
  V::F inverse[kRows];
  V::I middle[kRows];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    inverse[r] = V::Set(1.0F / rows.pair.x_scale[first_row + r]);
    middle[r] = V::SetInt(0);
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
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const uint32_t row = first_row + r;
    _mm512_storeu_si512(XOf(rows, row) + c, _mm512_setzero_si512());
    rows.pair.x_zero[row] -= 0.5F * static_cast<float>(V::SumInt(middle[r])) * rows.pair.x_scale[row];
  }
}

void PrepareTables(const PairTask& task, PairMemory& pairs, RowBlock& rows) {
  ForRows<1>(rows.num_rows,
             [&](auto count, uint32_t row) { MeasureRows<decltype(count)::value>(task, pairs, row, rows); });
  ForRows<1>(rows.num_rows, [&](auto count, uint32_t row) { CutRows<decltype(count)::value>(task, pairs, row, rows); });
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    MakeTables(XOf(rows, row), Steps(task.head_dim), pairs.tables[row][0]);
  }
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
void LookUpKeys(const PairTask& task, PairMemory& pairs, RowBlock& rows, StretchMemory& memory) {
  constexpr uint32_t kMost = 6;  // blocks at once
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
        ForRows<kBlocks>(rows.num_rows, [&](auto num_rows, uint32_t row) {
          const LookUps what{XOf(rows, row) + place,
                             kXRow,
                             pairs.tables[row][place / kSix],
                             sizeof pairs.tables[0] / 2,
                             indexes + first * kBlockColumns,
                             blocks * kBlockColumns,
                             steps,
                             rows.num_rows < kFewRows};
          AddKeySums<decltype(num_rows)::value, kBlocks>(what, place == 0, row, first, pairs, memory.fetch);
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

/// 2^x for x <= 0 to 3e-6 relative, nearly 0 where x < -100: what is cut to 16 bits needs no more.
[[gnu::always_inline]] inline __m512 PairExp2(__m512 x) {
  const __m512 magic = _mm512_set1_ps(12582912.0F);  // 1.5 · 2^23: added to a number, leaves its nearest integer low
  const __m512 least = _mm512_max_ps(x, _mm512_set1_ps(-100.0F));
  const __m512 shifted = _mm512_add_ps(least, magic);
  const __m512 r = _mm512_sub_ps(least, _mm512_sub_ps(shifted, magic));
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.00958285F), _mm512_set1_ps(0.05590643F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24024099F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69312419F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
}

/// Weights of one row relative to its largest logit in the page, times value scales and cut to words, with one unit a
/// group. Adds the weights' sum, times `factor`, to the row's, and so for value zeros and what is cut off.
template <uint32_t kVectors>
void WeighRow(const PairTask& task, float reference, float factor, uint32_t row, RowBlock& rows, PairMemory& pairs) {
  const auto minus_reference = V::Set(-reference);
  const auto to_running = V::Set(factor);
  const float middle = 0.5F * static_cast<float>((1U << task.value_bits) - 1);  // of the codes
  V::F weights[kVectors];
  auto sum = V::Set(0.0F);
  KVANT_UNROLL
  for (uint32_t i = 0; i < kVectors; ++i) {
    weights[i] = PairExp2(V::Add(V::Load(pairs.logit[row] + i * V::kLanes), minus_reference));
    sum = V::Add(sum, weights[i]);
  }
  V::Store(rows.sum[row], V::Fma(sum, to_running, V::Load(rows.sum[row])));
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    V::F scaled[kVectors];
    auto zero = V::Set(0.0F);
    auto total = V::Set(0.0F);
    KVANT_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i) {
      scaled[i] = V::Mul(weights[i], V::Load(pairs.value_scale[g] + i * V::kLanes));
      zero = V::Fma(weights[i], V::Load(pairs.value_zero[g] + i * V::kLanes), zero);
      total = V::Add(total, scaled[i]);
    }
    const float largest = V::Sum(total) + kLeastSum;
    const auto inverse = V::Set(kFullSum / largest);
    const auto unit = V::Set(largest / kFullSum);
    int16_t* px = PxOf(task, pairs, row, g);
    auto cut = V::SetInt(0);
    KVANT_UNROLL
    for (uint32_t i = 0; i < kVectors; i += 2) {
      const __m512i words =
          _mm512_packs_epi32(V::Round(V::Mul(scaled[i], inverse)), V::Round(V::Mul(scaled[i + 1], inverse)));
      cut = V::DotPairs(cut, words, _mm512_set1_epi16(1));
      _mm512_store_si512(px + i * V::kLanes, words);
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(px + kVectors * V::kLanes), _mm256_setzero_si256());
    const auto rest = V::Sub(total, V::Mul(V::ToFloats(cut), unit));
    zero = V::Fma(rest, V::Set(middle), zero);
    float* zeros = rows.pair.zero + (size_t{row} * task.value_groups + g) * kMaxLanes;
    V::Store(zeros, V::Fma(zero, to_running, V::Load(zeros)));
    pairs.p_scale[row][g] = factor * largest / kFullSum;
  }
}

void WeighRows(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  float max[kRowBlock];
  MakeAllLogits(task, rows, pairs, max);
  alignas(64) float factor[kMaxLanes] = {};
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (max[row] > rows.max[row]) {
      RaiseMax<V>(max[row], rows.out_channels, rows, row);
    }
    const bool sees = rows.visible[row] > rows.hidden[row];
    factor[row] = sees ? max[row] - rows.max[row] : -1000.0F;  // 0 as a power of two
  }
  V::Store(factor, Exp2<V>(V::Load(factor)));
  Fetch fetch = memory.fetch;
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    if (factor[row] == 0.0F) {
      __builtin_memset(PxOf(task, pairs, row, 0), 0, task.value_groups * sizeof pairs.px[0]);
      __builtin_memset(pairs.p_scale[row], 0, sizeof pairs.p_scale[row]);
      continue;
    }
    FetchAhead<2, 1>(fetch);
    const auto weigh = Halves(task) == 2 ? WeighRow<8> : WeighRow<4>;
    weigh(task, max[row], factor[row], row, rows, pairs);
  }
  memory.fetch = fetch;
}

/// acc += kVectors vectors of places from the sums of a block.
template <int kPlanes>
[[gnu::always_inline]] inline void AddPlaces(const __m512i (&sums)[2], V::F scale, const __mmask16 (&lanes)[2],
                                             float* out) {
  const auto dot = [&sums](__m512i even, __m512i odd) {
    return V::ToFloats(_mm512_dpwssd_epi32(_mm512_dpwssd_epi32(_mm512_setzero_si512(), sums[0], even), sums[1], odd));
  };
  if constexpr (kPlanes == 2) {
    const auto first = dot(_mm512_set1_epi32(1), _mm512_set1_epi32(2));
    const auto second = dot(_mm512_set1_epi32(1 << 16), _mm512_set1_epi32(2 << 16));
    V::Store(out, _mm512_mask3_fmadd_ps(first, scale, V::Load(out), lanes[0]));
    V::Store(out + V::kLanes, _mm512_mask3_fmadd_ps(second, scale, V::Load(out + V::kLanes), lanes[1]));
  } else {
    const int64_t high = kPlanes == 8 ? 0x0040001000000000 : 0x0004000100000000;
    const auto even = _mm512_set1_epi64(high | 0x00040001);
    const auto odd = _mm512_slli_epi16(even, 1);
    V::Store(out, V::Fma(dot(even, odd), scale, V::Load(out)));
  }
}

template <int kPlanes, int kRows, int kBlocks>
void AddValues(const PairTask& task, const LookUps& what, PairMemory& pairs, RowBlock& rows, uint32_t first_row,
               uint32_t group, uint32_t first_block, Fetch& fetch) {
  __m512i acc[kRows][kBlocks][2];
  KVANT_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVANT_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      acc[r][b][0] = _mm512_setzero_si512();
      acc[r][b][1] = _mm512_setzero_si512();
    }
  }
  Fetch next = fetch;
  LookUp<kRows, kBlocks>(what, acc, next);
  fetch = next;
  constexpr uint32_t kPlaces = kPlanes == 2 ? 32 : 16;
  KVANT_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    // Of two bits, 16 channels are lanes 0 to 7 of both vectors, or 8 to 15.
    const uint32_t channel = (first_block + static_cast<uint32_t>(b)) * kPlaces;
    const auto has = [&](uint32_t c) { return c - group * task.value_group < task.value_group; };
    const auto mask = static_cast<__mmask16>((has(channel) ? 0x00FF : 0) | (has(channel + 16) ? 0xFF00 : 0));
    const __mmask16 lanes[2] = {mask, mask};
    KVANT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row = first_row + static_cast<uint32_t>(r);
      float* out = rows.pair.out + size_t{row} * rows.pair.value_places + channel;
      AddPlaces<kPlanes>(acc[r][b], V::Set(pairs.p_scale[row][group]), lanes, out);
    }
  }
}

template <int kPlanes>
void LookUpValues(const PairTask& task, PairMemory& pairs, RowBlock& rows, StretchMemory& memory) {
  constexpr uint32_t kMost = 4;  // blocks at once
  const uint32_t step_bytes = ValueStepBytes(task);
  const uint32_t steps = Steps(Positions(task));
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      MakeTables(PxOf(task, pairs, row, g), steps, pairs.tables[row][0]);
    }
    const uint32_t columns = task.value_group * kPlanes;
    const uint32_t end = ((g + 1) * columns + kBlockColumns - 1) / kBlockColumns;
    for (uint32_t block = g * columns / kBlockColumns; block < end; block += kMost) {
      WithCount<kMost>(end - block < kMost ? end - block : kMost, [&](auto num_blocks) {
        constexpr int kBlocks = decltype(num_blocks)::value;
        ForRows<kBlocks>(rows.num_rows, [&](auto num_rows, uint32_t row) {
          const LookUps what{PxOf(task, pairs, row, g),
                             kPxRow * task.value_groups,
                             pairs.tables[row][0],
                             sizeof pairs.tables[0] / 2,
                             pairs.indexes.values + block * kBlockColumns,
                             step_bytes,
                             steps,
                             rows.num_rows < kFewRows};
          AddValues<kPlanes, decltype(num_rows)::value, kBlocks>(task, what, pairs, rows, row, g, block, memory.fetch);
        });
      });
    }
  }
}

void AttendPairPage(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  PrepareTables(task, pairs, rows);
  LookUpKeys(task, pairs, rows, memory);
  WeighRows(task, rows, pairs, memory);
  switch (ValuePlanes(task)) {
    case 2: return LookUpValues<2>(task, pairs, rows, memory);
    case 4: return LookUpValues<4>(task, pairs, rows, memory);
    default: return LookUpValues<8>(task, pairs, rows, memory);
  }
}

/// Sums by place to sums by channel.
void OrderValues(const PairTask& task, const float* places, float* channels) {
  switch (ValuePlanes(task)) {
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
