#include "kvant/codec/tiers.h"

#include <gtest/gtest.h>

#include <random>

#include "kvant/codec/layer_block.h"

namespace kvant::codec {
namespace {

std::vector<Tier> RandomIds(uint32_t count) {
  std::mt19937 random(count);
  std::vector<Tier> ids(count);
  for (Tier& id : ids) {
    id = static_cast<Tier>(random() % kNumTiers);
  }
  return ids;
}

TEST(TiersTest, IdsComeBack) {
  for (const uint32_t count : {0U, 1U, 3U, 4U, 7U, 8U, 9U, 1000U}) {
    const std::vector<Tier> ids = RandomIds(count);
    std::vector<std::byte> packed(TierIdBytes(count));
    EXPECT_EQ(packed.size(), (count + 7) / 8 * 2) << count;
    PackTierIds(ids, packed);
    std::vector<Tier> back(count);
    EXPECT_TRUE(UnpackTierIds(packed, back));
    EXPECT_EQ(back, ids);
  }
}

TEST(TiersTest, TheFirstIdStandsInTheLowestBits) {
  std::vector<std::byte> packed(2);
  PackTierIds(std::vector{Tier::kInt8, Tier::kInt4, Tier::kDropped, Tier::kFp16, Tier::kInt4}, packed);
  EXPECT_EQ(packed, (std::vector{std::byte{0b00111001}, std::byte{0b00000010}}));
}

TEST(TiersTest, BitsBeyondTheLastIdAreRefused) {
  std::vector<std::byte> packed(2);
  std::vector<Tier> ids(3);
  PackTierIds(ids, packed);
  EXPECT_TRUE(UnpackTierIds(packed, ids));
  packed[1] = std::byte{1};
  EXPECT_FALSE(UnpackTierIds(packed, ids));
  packed[1] = std::byte{0};
  packed[0] = std::byte{0x40};
  EXPECT_FALSE(UnpackTierIds(packed, ids));
}

TEST(TiersTest, ABlockOfOneTierNeedsNoIdsAndHasTheBytesOfThePlainPrecision) {
  const LayerBlockLayout plain{{30, 3, 64}, TokenCodec::kInt8, true, {4, 1000, 0}};
  LayerBlockLayout tiers = plain;
  tiers.tiers = TierCounts{0, 1000, 0, 0};
  EXPECT_EQ(tiers.total_bytes(), plain.total_bytes() + 16);
  tiers.tiers = TierCounts{0, 999, 1, 0};
  EXPECT_EQ(tiers.total_bytes(), plain.total_bytes() + 16 + 3 * (250 + 2 * (36 - 66)));
}

TEST(TiersTest, SizesAndBitsByHand) {
  LayerBlockLayout layout{{30, 3, 64}, TokenCodec::kInt8, false, {0, 1000, 0}};
  layout.tiers = TierCounts{100, 200, 300, 400};
  EXPECT_EQ(layout.total_bytes(), 16U + 3U * (250U + 2U * (100U * 128U + 200U * 66U + 300U * 34U)));
  const BitsPerElement bits = BitsOf(layout);
  EXPECT_DOUBLE_EQ(bits.payload, (100 * 16.0 + 200 * 8.0 + 300 * 4.0) / 1000);
  EXPECT_DOUBLE_EQ(bits.effective, 8.0 * static_cast<double>(layout.total_bytes()) / (2 * 3 * 64 * 1000));
}

}  // namespace
}  // namespace kvant::codec
