#include "kvant/codec/pair_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kvant/codec/pair_block.h"

namespace kvant::codec {
namespace {

struct Tokens {
  std::vector<Half> keys;
  std::vector<Half> values;
};

Tokens RandomTokens(const PairFormat& format, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tokens tokens;
  for (size_t i = 0; i < size_t{format.page_tokens} * format.head_dim; ++i) {
    tokens.keys.push_back(ToHalf(2.0F * normal(random) + static_cast<float>(i % format.head_dim % 7)));
    tokens.values.push_back(ToHalf(normal(random)));
  }
  return tokens;
}

WidthMap MapOf(uint32_t head_dim, PairLayout pairs) {
  WidthMap map{pairs, {}};
  for (uint32_t i = 0; i < head_dim / 2; ++i) map.widths.push_back(static_cast<uint8_t>(1 + i % 4));
  return map;
}

TEST(PairPage, ErrorStaysWithinHalfAStepOfEveryGroup) {
  for (const PairRule rule : {PairRule::kMinMax, PairRule::kMidRise}) {
    for (const uint32_t bits : {2U, 3U, 4U, 8U}) {
      const PairFormat format{64, 128, bits, 32, rule, rule};
      const WidthMap map = MapOf(64, PairLayout::kHalfSplit);
      const Tokens tokens = RandomTokens(format, bits);
      const PairPage page = EncodePairPageRef(format, map, tokens.keys.data(), tokens.values.data(), 64);
      std::vector<float> keys(tokens.keys.size());
      std::vector<float> values(keys.size());
      DecodePairPageRef(format, page, keys, values);
      for (size_t i = 0; i < keys.size(); ++i) {
        const float key_step = ToFloat(page.key_scales[i % 64]);
        EXPECT_LE(std::fabs(keys[i] - ToFloat(tokens.keys[i])), 0.501F * key_step + 0.01F);
        const float value_step = ToFloat(page.value_scales[i / 64 * 2 + i % 64 / 32]);
        EXPECT_LE(std::fabs(values[i] - ToFloat(tokens.values[i])), 0.501F * value_step + 0.005F);
      }
    }
  }
}

TEST(PairPage, CodesFitTheirWidthAndUseAllOfIt) {
  const PairFormat format{128, 128, 2, 128};
  const WidthMap map = MapOf(128, PairLayout::kInterleaved);
  const Tokens tokens = RandomTokens(format, 3);
  const PairPage page = EncodePairPageRef(format, map, tokens.keys.data(), tokens.values.data(), 128);
  for (uint32_t c = 0; c < 128; ++c) {
    uint8_t largest = 0;
    for (size_t t = 0; t < 128; ++t) largest = std::max(largest, page.key_codes[t * 128 + c]);
    EXPECT_EQ(largest, (1U << map.WidthOf(c)) - 1U) << c;
  }
}

TEST(PairPage, BytesAndCodesAreABijection) {
  for (const uint32_t d : {32U, 64U, 128U, 256U}) {
    for (const uint32_t tokens : {32U, 64U, 128U}) {
      for (const uint32_t bits : {2U, 3U, 4U, 8U}) {
        const PairFormat format{d, tokens, bits, d / 2};
        const WidthMap map = MapOf(d, PairLayout::kHalfSplit);
        std::mt19937 random(d + tokens + bits);
        std::vector<std::byte> bytes(PairPageLayout::Make(format, map).total_bytes);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        const PairPage page = ParsePairPage(format, map, bytes);
        std::vector<std::byte> again(bytes.size(), std::byte{0xEE});
        SerializePairPage(format, map, page, again);
        EXPECT_EQ(again, bytes);
      }
    }
  }
}

TEST(PairPage, LowPlaneOfAllChannelsComesFirst) {
  const PairFormat format{32, 32, 2, 32};
  WidthMap map{PairLayout::kInterleaved, std::vector<uint8_t>(16, 1)};
  map.widths[3] = 2;  // channels 6 and 7
  std::vector<std::byte> bytes(PairPageLayout::Make(format, map).total_bytes);
  PairPage page = ParsePairPage(format, map, bytes);
  page.key_codes[5 * 32 + 6] = 2;  // token 5, channel 6: plane 1 only
  page.key_codes[0 * 32 + 1] = 1;  // token 0, channel 1: plane 0
  SerializePairPage(format, map, page, bytes);
  EXPECT_EQ(bytes[4], std::byte{1});            // plane 0 of channel 1, token 0
  EXPECT_EQ(bytes[32 * 4], std::byte{1 << 5});  // plane 1 of channel 6, token 5
}

TEST(PairPage, WiderChannelsComeFirstAndPairsStayTogether) {
  WidthMap map{PairLayout::kHalfSplit, {1, 3, 1, 3}};
  EXPECT_EQ(ChannelOrder(map), (std::vector<uint32_t>{1, 3, 5, 7, 0, 2, 4, 6}));
  map.pairs = PairLayout::kInterleaved;
  EXPECT_EQ(ChannelOrder(map), (std::vector<uint32_t>{2, 3, 6, 7, 0, 1, 4, 5}));
  EXPECT_EQ(map.BitsPerKey(), 16U);
}

TEST(PairPage, TwoWidthMapFollowsTheMask) {
  const bool salient[] = {true, false, false, true};
  EXPECT_EQ(TwoWidthMap(PairLayout::kHalfSplit, 1, 3, salient).widths, (std::vector<uint8_t>{3, 1, 1, 3}));
}

// methods.md 10.2; the group is repeated to fill a page, which changes neither its range nor its codes.
TEST(PairPage, GroupsOfThePaper) {
  constexpr float kGroup[] = {-1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2};
  const PairFormat format{32, 32, 2, 32};
  WidthMap map{PairLayout::kInterleaved, std::vector<uint8_t>(16, 2)};
  map.widths[1] = 1;  // channels 2 and 3
  std::vector<Half> tokens(32 * 32);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = ToHalf(kGroup[i / 32 % 8]);
  const PairPage page = EncodePairPageRef(format, map, tokens.data(), tokens.data(), 32);
  constexpr uint8_t kTwoBits[] = {0, 0, 1, 1, 2, 2, 2, 3};  // half to even: 0xEA50 packed
  constexpr uint8_t kOneBit[] = {0, 0, 0, 0, 1, 1, 1, 1};
  for (size_t t = 0; t < 32; ++t) {
    EXPECT_EQ(page.key_codes[t * 32], kTwoBits[t % 8]);
    EXPECT_EQ(page.key_codes[t * 32 + 2], kOneBit[t % 8]);
  }
  EXPECT_EQ(ToFloat(page.key_scales[0]), 1.0F);
  EXPECT_EQ(ToFloat(page.key_zeros[0]), -1.0F);
  EXPECT_EQ(ToFloat(page.key_scales[2]), 1.5F);  // quarter points
  EXPECT_EQ(ToFloat(page.key_zeros[2]), -0.25F);
  std::vector<float> group(std::begin(kGroup), std::end(kGroup));
  EXPECT_NEAR(KeyGroupError({PairRule::kMinMax}, 1, group) / 8, 0.2734, 1e-4);
}

// methods.md 10.2: end points at half to even put 0.5, a tie, with the lower ones.
TEST(PairPage, OneBitHasTheAskedPoints) {
  constexpr float kGroup[] = {-1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2};
  const auto restored = [&](OneBitRule rule) {
    std::vector<float> group(std::begin(kGroup), std::end(kGroup));
    RoundTripKeyGroup({PairRule::kMidRise, rule}, 1, group);
    return group;
  };
  EXPECT_EQ(restored(OneBitRule::kEndPoints), (std::vector<float>{-1, -1, -1, -1, -1, 2, 2, 2}));
  EXPECT_EQ(restored(OneBitRule::kQuarterPoints),
            (std::vector<float>{-0.25, -0.25, -0.25, -0.25, 1.25, 1.25, 1.25, 1.25}));
  EXPECT_EQ(restored(OneBitRule::kMeans),
            (std::vector<float>{-0.3125, -0.3125, -0.3125, -0.3125, 1.25, 1.25, 1.25, 1.25}));
}

TEST(PairPage, OnlyGroupsOfOneBitReadTheirRule) {
  const PairFormat quarter{64, 128, 2, 64};
  PairFormat ends = quarter;
  ends.one_bit = OneBitRule::kEndPoints;
  const WidthMap map = MapOf(64, PairLayout::kHalfSplit);
  const Tokens tokens = RandomTokens(quarter, 5);
  const PairPage a = EncodePairPageRef(quarter, map, tokens.keys.data(), tokens.values.data(), 64);
  const PairPage b = EncodePairPageRef(ends, map, tokens.keys.data(), tokens.values.data(), 64);
  EXPECT_EQ(a.value_codes, b.value_codes);
  for (uint32_t c = 0; c < 64; ++c) {
    EXPECT_EQ(a.key_scales[c] == b.key_scales[c], map.WidthOf(c) > 1) << c;
  }
}

TEST(PairPage, ABlockSaysItsRuleForOneBit) {
  const PairBlockFormat block{
      {64, 128, 2, 64, PairRule::kMidRise, PairRule::kMinMax, OneBitRule::kMeans}, PairLayout::kHalfSplit, false, 128};
  std::vector<std::byte> bytes(kPairFormatBytes);
  PutPairMaps(block, {}, bytes);
  EXPECT_EQ(TakePairFormat(64, bytes).value(), block);
  for (const auto& [offset, value] : {std::pair(12U, 3), std::pair(13U, 1), std::pair(15U, 1)}) {
    std::vector<std::byte> changed = bytes;
    changed[offset] = static_cast<std::byte>(value);
    EXPECT_EQ(TakePairFormat(64, changed).status().code(), StatusCode::kInvalidArgument) << offset;
  }
}

TEST(PairPage, BytesOfThePapersSettings) {
  std::vector<uint8_t> widths(64, 1);
  std::fill_n(widths.begin(), 32, uint8_t{3});
  const PairFormat format{128, 128, 2, 128};
  const PairPageLayout first = PairPageLayout::Make(format, {PairLayout::kHalfSplit, widths});
  EXPECT_EQ(first.value_codes, 4096U + 512U);  // methods.md 3.13: keys of (3, 1, 32 pairs)
  EXPECT_EQ(first.total_bytes, 9216U);
  std::fill(widths.begin(), widths.end(), uint8_t{1});
  std::fill_n(widths.begin(), 22, uint8_t{4});
  EXPECT_EQ(PairPageLayout::Make(format, {PairLayout::kHalfSplit, widths}).value_codes, 4672U);
  std::fill(widths.begin(), widths.end(), uint8_t{2});
  EXPECT_EQ(PairPageLayout::Make(format, {PairLayout::kHalfSplit, widths}).value_codes, 4608U);
}

TEST(PairPage, FaultsAreNamed) {
  const WidthMap map = MapOf(128, PairLayout::kHalfSplit);
  EXPECT_TRUE(CheckPairFormat({128, 128, 2, 128}, map).ok());
  const Status other_head = CheckPairFormat({100, 128, 2, 100}, map);
  EXPECT_EQ(other_head.code(), StatusCode::kModelUnsupported);
  EXPECT_NE(other_head.message().find("head dimension 100"), std::string::npos) << other_head.message();
  EXPECT_NE(other_head.message().find("groups of 16 channels"), std::string::npos) << other_head.message();
  EXPECT_EQ(CheckPairFormat({128, 100, 2, 128}, map).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPairFormat({128, 128, 5, 128}, map).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPairFormat({128, 128, 2, 0}, map).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPairFormat({128, 128, 2, 8}, map).code(), StatusCode::kInvalidArgument);
  const Status other_group = CheckPairFormat({128, 128, 2, 48}, map);
  EXPECT_EQ(other_group.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other_group.message().find("48 channels"), std::string::npos) << other_group.message();
  EXPECT_NE(other_group.message().find("128"), std::string::npos) << other_group.message();
  EXPECT_EQ(CheckPairFormat({64, 128, 2, 64}, map).code(), StatusCode::kInvalidArgument);
  WidthMap bad = map;
  bad.widths[5] = 5;
  EXPECT_EQ(CheckPairFormat({128, 128, 2, 128}, bad).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::codec
