#include "eval/page_maps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace kvant::eval {
namespace {

constexpr uint32_t kHeadDim = 32;

// Channels 3 and 4 are large in the first page, 7 and 8 in the second.
PlainHead TwoPages() {
  PlainHead head{kHeadDim, {}, {}, std::vector<codec::Tier>(64, codec::Tier::kInt4)};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (uint32_t t = 0; t < 64; ++t) {
    for (uint32_t c = 0; c < kHeadDim; ++c) {
      const bool large = t < 32 ? c == 3 || c == 4 : c == 7 || c == 8;
      head.keys.push_back(ToFloat(ToHalf((large ? 8.0F : 1.0F) * normal(random))));
    }
  }
  head.values = head.keys;
  return head;
}

TEST(PageMaps, APagesChannelsAreChosenOfThatPageAlone) {
  const codec::PairPrecision precision = codec::ParsePairPrecision("pnmix:4/2@6.25%,rule=magnitude").value();
  const PlainHead head = TwoPages();
  std::vector<uint32_t> first(kHeadDim, 2);
  std::vector<uint32_t> second = first;
  first[3] = first[4] = 4;
  second[7] = second[8] = 4;
  EXPECT_EQ(WidthsOfPage(precision, head, {0, 32}), first);
  EXPECT_EQ(WidthsOfPage(precision, head, {32, 64}), second);
}

TEST(PageMaps, ReselectionKnowsWhatCameBeforeAndNothingLater) {
  const codec::PairPrecision precision = codec::ParsePairPrecision("pnmix:3/1@12.5%,g=32").value();
  const PlainHead head = TwoPages();
  // Two query heads; the second is the KV head's, and looks at pair 0 from token 32 on.
  std::vector<Half> queries(64 * 2 * kHeadDim, ToHalf(0.5F));
  for (size_t t = 32; t < 64; ++t) {
    queries[(t * 2 + 1) * kHeadDim] = ToHalf(1000.0F);
  }
  Reselection reselection(precision, codec::PairLayout::kInterleaved, head, queries, 2, 1, 1);
  const std::vector<uint32_t> first = reselection.WidthsOf({0, 32}, 0);
  EXPECT_EQ(first[2], 3U);  // pairs 1 and 2 hold channels 3 and 4
  EXPECT_EQ(first[4], 3U);
  EXPECT_EQ(first[0], 1U);
  EXPECT_EQ(reselection.WidthsOf({32, 64}, 0)[0], 3U);
}

TEST(PageMaps, KeysGoChannelByChannelThroughTheirWidth) {
  const PlainHead exact = TwoPages();
  PlainHead head = exact;
  std::vector<uint32_t> widths(kHeadDim, 4);
  widths[5] = 1;
  std::vector<uint32_t> positions;
  for (uint32_t t = 1; t < 64; t += 2) positions.push_back(t);
  RoundTripKeys({codec::PairRule::kMinMax}, widths, positions, exact, &head);
  std::vector<float> column;
  for (const uint32_t t : positions) column.push_back(exact.key(t)[5]);
  codec::RoundTripKeyGroup({codec::PairRule::kMinMax}, 1, column);
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(head.key(positions[i])[5], column[i]);
    EXPECT_NEAR(head.key(positions[i])[6], exact.key(positions[i])[6], 0.3);
  }
  for (uint32_t t = 0; t < 64; t += 2) {
    EXPECT_TRUE(std::equal(head.key(t), head.key(t) + kHeadDim, exact.key(t)));
  }
  EXPECT_EQ(head.values, exact.values);
}

}  // namespace
}  // namespace kvant::eval
