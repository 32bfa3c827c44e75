// What a group loses is bound by its own range, whatever lies beside it: heads that are no multiple of the usual group,
// numbers far from zero, constants, tokens that come one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "kvant/cache/sequence.h"
#include "kvant/kernels/pair_pages.h"
#include "support/block_reference.h"

namespace kvant::cache {
namespace {

using codec::TokenCodec;
using test::DecodedLayer;
using test::LayerRows;

constexpr uint32_t kHeads = 2;
constexpr uint32_t kHeadDims[] = {32, 40, 48, 80, 96, 100};
constexpr const char* kWords[] = {"int8,eq=off,sinks=0,residual=32",
                                  "int4,eq=off,sinks=0,residual=32",
                                  "int8,sinks=3",
                                  "int4",
                                  "pnmix:3/1@50%,v=2,g=32,sinks=0",
                                  "pnmix:4/2@25%,v=3,vg=16,g=64,rec=midrise",
                                  "pairs:2.0,v=4,g=32,sinks=4",
                                  "pairs:2.0,v=2,g=32,sinks=0",
                                  "pairs:2.5,v=3",
                                  "pairs:3.0,v=8,g=32,sinks=0"};

// Rows of `middle` in every channel, give or take as much as `spread`.
LayerRows RowsAround(float middle, float spread, uint32_t head_dim, uint32_t num_tokens) {
  LayerRows rows{kHeads, num_tokens, head_dim, {}, {}};
  std::mt19937 random(3);
  std::uniform_real_distribution<float> noise(-spread, spread);
  for (size_t i = 0; i < size_t{kHeads} * num_tokens * head_dim; ++i) {
    rows.keys.push_back(ToHalf(middle + noise(random)));
    rows.values.push_back(ToHalf(middle + noise(random)));
  }
  return rows;
}

struct Range {
  float low = INFINITY;
  float high = -INFINITY;

  void Add(float x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  float width() const { return high - low; }
  float largest() const { return std::max(std::fabs(low), std::fabs(high)); }
};

// The most that a row may lose beside the rounding of its scale and zero to fp16.
float HalfStepOf(TokenCodec codec, const Range& range) {
  switch (codec) {
    case TokenCodec::kInt8: return range.largest() / 127 / 2;
    case TokenCodec::kInt4: return range.largest() / 7 / 2;
    case TokenCodec::kInt4Affine: return range.width() / 15 / 2;
    case TokenCodec::kFp16: break;
  }
  return 0;
}

float HalfStepOf(codec::PairRule rule, uint32_t bits, const Range& range) {
  const auto cells = static_cast<float>(1U << bits);
  return range.width() / (rule == codec::PairRule::kMidRise || bits == 1 ? cells : cells - 1) / 2;
}

float RoundingOf(const Range& range) { return 0x1p-9F * range.largest(); }

class GroupBoundsTest : public testing::TestWithParam<const char*> {
 protected:
  bool Takes(uint32_t head_dim) const { return codec::CheckPrecision(precision_, head_dim).ok(); }
  bool turned() const { return precision_.pairs && precision_.pairs->rotate_values; }
  bool symmetric() const { return !precision_.pairs && codec::RuleOf(precision_.codec) == quant::Rule::kSymmetric; }

  LayerCache NewCache(uint32_t head_dim) {
    LayerCache cache({1, kHeads, head_dim}, precision_, kernels::BestIsa(), &account_);
    if (precision_.pairs) {
      const auto maps = Maps(head_dim);
      cache.SetPairMaps(codec::PairLayout::kInterleaved, maps);
    }
    return cache;
  }
  static std::vector<codec::WidthMap> Maps(uint32_t head_dim) {
    std::vector<codec::WidthMap> maps(kHeads, {codec::PairLayout::kInterleaved, {}});
    for (codec::WidthMap& map : maps) {
      for (uint32_t pair = 0; pair < head_dim / 2; ++pair) {
        map.widths.push_back(static_cast<uint8_t>(pair % 4 + 1));
      }
    }
    return maps;
  }
  static void Append(LayerCache& cache, const LayerRows& rows, uint32_t count) {
    const uint32_t first = cache.num_tokens();
    ASSERT_TRUE(cache.ExtendExact(count).ok());
    for (uint32_t head = 0; head < kHeads; ++head) {
      cache.StoreExact(head, first, count, &rows.keys[rows.Row(head, first)], &rows.values[rows.Row(head, first)],
                       rows.head_dim);
    }
    ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  }
  LayerCache Filled(const LayerRows& rows) {
    LayerCache cache = NewCache(rows.head_dim);
    Append(cache, rows, rows.num_tokens);
    EXPECT_GT(cache.split().num_encoded, 0U);
    return cache;
  }

  // As the references read what is stored; values that are turned stay so.
  DecodedLayer Decoded(const LayerCache& cache) {
    const codec::LayerBlockLayout layout = cache.block_layout();
    std::vector<std::byte> block(layout.total_bytes());
    cache.ExportBlock(block, nullptr);
    if (!precision_.pairs) {
      return test::DecodeBlockRef(layout, block);
    }
    DecodedLayer out;
    for (uint32_t head = 0; head < kHeads; ++head) {
      AddPages(cache.shape().head_dim, codec::HeadOf(layout, std::span<const std::byte>(block), head).pages, head,
               &out);
    }
    return out;
  }
  // Encoded tokens alone, a head after the other.
  void AddPages(uint32_t head_dim, std::span<const std::byte> pages, uint32_t head, DecodedLayer* out) {
    const codec::PairFormat format = precision_.pairs->FormatOf(head_dim);
    const codec::WidthMap map = Maps(head_dim)[head];
    const size_t page_bytes = codec::PairPageLayout::Make(format, map).total_bytes;
    for (size_t at = 0; at < pages.size(); at += page_bytes) {
      std::vector<float> keys(size_t{format.page_tokens} * head_dim);
      std::vector<float> values(keys.size());
      codec::DecodePairPageRef(format, codec::ParsePairPage(format, map, pages.subspan(at, page_bytes)), keys, values);
      out->keys.insert(out->keys.end(), keys.begin(), keys.end());
      out->values.insert(out->values.end(), values.begin(), values.end());
    }
  }

  // The encoded tokens of a head, as they were and as they came back. Shapes  [encoded][head_dim]
  struct Pair {
    std::vector<float> exact;
    std::vector<float> decoded;
  };
  Pair EncodedOf(const LayerCache& cache, const LayerRows& rows, const DecodedLayer& decoded, uint32_t head,
                 bool keys) const {
    const codec::TokenSplit split = cache.split();
    const size_t count = size_t{split.num_encoded} * rows.head_dim;
    std::vector<Half> exact(count);
    std::copy_n((keys ? rows.keys : rows.values).begin() + static_cast<ptrdiff_t>(rows.Row(head, split.num_sinks)),
                count, exact.begin());
    if (turned() && !keys) {
      kernels::RotateValueRows(kernels::Isa::kScalar, rows.head_dim, exact.data(), rows.head_dim, split.num_encoded,
                               exact.data(), rows.head_dim);
    }
    Pair pair{std::vector<float>(count), std::vector<float>(count)};
    ToFloat(exact, pair.exact);
    const size_t first =
        precision_.pairs ? head * count : (size_t{head} * split.total() + split.num_sinks) * rows.head_dim;
    std::copy_n((keys ? decoded.keys : decoded.values).begin() + static_cast<ptrdiff_t>(first), count,
                pair.decoded.begin());
    return pair;
  }

  // Rows of keys as they are coded: without mean and scale of their channel.
  static void Equalize(const LayerCache& cache, uint32_t head, std::span<float> row, bool back) {
    const auto& map = cache.equalization();
    for (size_t c = 0; map && c < row.size(); ++c) {
      const float mean = ToFloat(map->MeanOf(head)[c]);
      const float scale = ToFloat(map->ScaleOf(head)[c]);
      row[c] = back ? row[c] * scale : (row[c] - mean) / scale;
    }
  }

  void ExpectRowsWithinBound(const LayerCache& cache, uint32_t head, const Pair& pair, bool keys) const {
    const uint32_t head_dim = cache.shape().head_dim;
    for (size_t at = 0; at < pair.exact.size(); at += head_dim) {
      std::vector<float> row(pair.exact.begin() + static_cast<ptrdiff_t>(at),
                             pair.exact.begin() + static_cast<ptrdiff_t>(at + head_dim));
      if (keys) {
        Equalize(cache, head, row, false);
      }
      Range range;
      std::for_each(row.begin(), row.end(), [&](float x) { range.Add(x); });
      std::vector<float> bound(head_dim, HalfStepOf(precision_.codec, range) + RoundingOf(range));
      if (keys) {
        Equalize(cache, head, bound, true);
      }
      for (uint32_t c = 0; c < head_dim; ++c) {
        ASSERT_LE(std::fabs(pair.exact[at + c] - pair.decoded[at + c]), bound[c]) << "channel " << c;
      }
    }
  }
  void ExpectKeysOfPagesWithinBound(uint32_t head_dim, uint32_t head, const Pair& pair) const {
    const codec::WidthMap map = Maps(head_dim)[head];
    const size_t page = size_t{precision_.pairs->page_tokens} * head_dim;
    for (size_t at = 0; at < pair.exact.size(); at += page) {
      for (uint32_t c = 0; c < head_dim; ++c) {
        ExpectGroupWithinBound(pair, at + c, head_dim, precision_.pairs->page_tokens,
                               {precision_.pairs->key_rule, map.WidthOf(c)});
      }
    }
  }
  void ExpectValuesOfPagesWithinBound(uint32_t head_dim, const Pair& pair) const {
    const uint32_t group = precision_.pairs->FormatOf(head_dim).value_group;
    for (size_t at = 0; at < pair.exact.size(); at += group) {
      ExpectGroupWithinBound(pair, at, 1, group, {precision_.pairs->value_rule, precision_.pairs->value_bits});
    }
  }
  struct Code {
    codec::PairRule rule;
    uint32_t bits;
  };
  static void ExpectGroupWithinBound(const Pair& pair, size_t first, size_t stride, size_t count, Code code) {
    Range range;
    for (size_t i = 0; i < count; ++i) {
      range.Add(pair.exact[first + i * stride]);
    }
    const float bound = HalfStepOf(code.rule, code.bits, range) + RoundingOf(range);
    for (size_t i = 0; i < count; ++i) {
      const size_t at = first + i * stride;
      ASSERT_LE(std::fabs(pair.exact[at] - pair.decoded[at]), bound) << code.bits << " bits at " << at;
    }
  }

  void ExpectWithinBound(const LayerCache& cache, const LayerRows& rows) {
    const DecodedLayer decoded = Decoded(cache);
    for (uint32_t head = 0; head < kHeads; ++head) {
      const Pair keys = EncodedOf(cache, rows, decoded, head, true);
      const Pair values = EncodedOf(cache, rows, decoded, head, false);
      if (precision_.pairs) {
        ExpectKeysOfPagesWithinBound(rows.head_dim, head, keys);
        ExpectValuesOfPagesWithinBound(rows.head_dim, values);
      } else {
        ExpectRowsWithinBound(cache, head, keys, true);
        ExpectRowsWithinBound(cache, head, values, false);
      }
    }
  }

  MemoryAccount account_;
  codec::Precision precision_ = codec::ParsePrecision(GetParam()).value();
};

TEST_P(GroupBoundsTest, NumbersFarFromZeroLoseNoMoreThanTheirRangeSays) {
  for (const uint32_t head_dim : kHeadDims) {
    for (const float middle : {10.0F, -10.0F}) {
      if (Takes(head_dim)) {
        SCOPED_TRACE(head_dim);
        const LayerRows rows = RowsAround(middle, 0.5F, head_dim, 180);
        ExpectWithinBound(Filled(rows), rows);
      }
    }
  }
}

// An asymmetric group of equal numbers has a zero and no step; a symmetric one rounds its scale. Values that are turned
// are not equal any more: there the bound of the turned group holds.
TEST_P(GroupBoundsTest, ConstantsComeBackAsTheyWere) {
  for (const uint32_t head_dim : kHeadDims) {
    for (const float constant : {9.0F, -9.0F, 0.0F}) {
      if (!Takes(head_dim)) {
        continue;
      }
      SCOPED_TRACE(head_dim);
      const LayerRows rows = RowsAround(constant, 0.0F, head_dim, 180);
      const LayerCache cache = Filled(rows);
      ExpectWithinBound(cache, rows);
      const DecodedLayer decoded = Decoded(cache);
      const bool exact_keys = !symmetric() || cache.equalization() || constant == 0;
      const bool exact_values = constant == 0 || (!symmetric() && !turned());
      for (const float key : decoded.keys) {
        ASSERT_NEAR(key, constant, exact_keys ? 0.0F : 0x1p-10F * 9);
      }
      for (size_t i = 0; exact_values && i < decoded.values.size(); ++i) {
        ASSERT_EQ(decoded.values[i], constant);
      }
    }
  }
}

// Bytes of so many tokens by the formats' documents, in whole runs beyond the sinks.
struct Formula {
  codec::Precision precision;
  uint32_t head_dim;

  uint32_t Encoded(uint32_t tokens) const {
    const uint32_t beyond = tokens - std::min(tokens, precision.num_sinks);
    const uint32_t whole = beyond / precision.residual * precision.residual;
    return precision.equalize && whole < 128 ? 0 : whole;
  }
  size_t Bytes(uint32_t tokens) const {
    const uint32_t encoded = Encoded(tokens);
    const size_t exact = size_t{tokens - encoded} * 4 * head_dim;
    return precision.pairs ? 16 + kHeads * (head_dim / 4 + encoded / precision.residual * PageBytes() + exact)
                           : kHeads * (encoded * RowBytes() + exact) + (encoded > 0 ? MapBytes() : 0);
  }
  size_t RowBytes() const {
    const size_t code = precision.codec == TokenCodec::kInt8 ? head_dim : (head_dim + 7) / 8 * 4;
    return 2 * (code + (precision.codec == TokenCodec::kInt4Affine ? 4 : 2));
  }
  size_t MapBytes() const { return precision.equalize ? kHeads * 4 * size_t{head_dim} : 0; }
  size_t PageBytes() const {
    uint32_t key_bits = 0;
    for (uint32_t pair = 0; pair < head_dim / 2; ++pair) {
      key_bits += 2 * (pair % 4 + 1);
    }
    const codec::PairPrecision& pairs = *precision.pairs;
    const size_t groups = pairs.value_group == 0 ? 1 : head_dim / pairs.value_group;
    return pairs.page_tokens * key_bits / 8 + 4 * head_dim +
           pairs.page_tokens * (head_dim * pairs.value_bits / 8 + 4 * groups);
  }
};

TEST_P(GroupBoundsTest, GeneratedTokensWaitExactUntilTheirRunIsWholeAndAreThenAsSmallAsSaid) {
  constexpr uint32_t kHeadDim = 96;
  const LayerRows rows = RowsAround(1.0F, 2.0F, kHeadDim, 32 + 300);
  const Formula formula{precision_, kHeadDim};
  LayerCache cache = NewCache(kHeadDim);
  Append(cache, rows, 32);
  uint32_t runs = 0;
  while (cache.num_tokens() < rows.num_tokens) {
    const uint32_t before = cache.split().num_encoded;
    Append(cache, rows, 1);
    ASSERT_EQ(cache.split().num_encoded, formula.Encoded(cache.num_tokens())) << cache.num_tokens();
    ASSERT_EQ(cache.stored_bytes(), formula.Bytes(cache.num_tokens())) << cache.num_tokens();
    if (cache.split().num_encoded > before) {
      ++runs;
      ExpectWithinBound(cache, rows);
    }
  }
  EXPECT_GE(runs, 1U);
  const DecodedLayer decoded = Decoded(cache);
  for (const bool keys : {true, false}) {
    const Pair aged = EncodedOf(cache, rows, decoded, 1, keys);
    for (size_t at = 0; at < aged.exact.size(); at += kHeadDim) {
      const auto row = [&](const std::vector<float>& of) { return std::span(of).subspan(at, kHeadDim); };
      EXPECT_FALSE(std::ranges::equal(row(aged.exact), row(aged.decoded))) << "token " << at / kHeadDim << " is exact";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Words, GroupBoundsTest, testing::ValuesIn(kWords),
                         [](const auto& instance) { return "case" + std::to_string(instance.index); });

}  // namespace
}  // namespace kvant::cache
