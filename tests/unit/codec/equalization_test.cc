#include "kvant/codec/equalization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace kvant::codec {
namespace {

constexpr uint32_t kHeads = 2;
constexpr uint32_t kDim = 32;
constexpr uint32_t kTokens = 200;

// Channel c of head h lies around 10·c - 3·h; channel 7 is constant and channel 9 of head 1 all zero.
std::vector<Half> Keys() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Half> keys(size_t{kHeads} * kTokens * kDim);
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t channel = i % kDim;
    const size_t head = i / kDim / kTokens;
    const float centre = 10.0F * static_cast<float>(channel) - 3.0F * static_cast<float>(head);
    keys[i] = ToHalf(channel == 7 ? -2.5F : head == 1 && channel == 9 ? 0.0F : centre + normal(random));
  }
  return keys;
}

const Half* RowAt(const std::vector<Half>& keys, uint32_t head, uint32_t token) {
  return keys.data() + (size_t{head} * kTokens + token) * kDim;
}

Equalization Build(const std::vector<Half>& keys) {
  EqualizationBuilder builder(kHeads, kDim);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t t = 0; t < kTokens; ++t) {
      AddKey({RowAt(keys, head, t), kDim}, builder.stats(head));
    }
  }
  return builder.Finish(kTokens);
}

TEST(EqualizationTest, MeanAndLargestRemainderPerChannel) {
  const std::vector<Half> keys = Keys();
  const Equalization map = Build(keys);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t c = 0; c < kDim; ++c) {
      double sum = 0;
      for (uint32_t t = 0; t < kTokens; ++t) {
        sum += static_cast<double>(ToFloat(RowAt(keys, head, t)[c]));
      }
      const Half mean = ToHalf(static_cast<float>(sum / kTokens));
      EXPECT_EQ(map.MeanOf(head)[c], mean);
      float largest = 0;
      for (uint32_t t = 0; t < kTokens; ++t) {
        largest = std::max(largest, std::fabs(ToFloat(RowAt(keys, head, t)[c]) - ToFloat(mean)));
      }
      EXPECT_EQ(map.ScaleOf(head)[c], largest == 0 ? ToHalf(1.0F) : ToHalf(largest));
    }
  }
}

TEST(EqualizationTest, AChannelWithoutSpreadHasScaleOne) {
  const Equalization map = Build(Keys());
  EXPECT_EQ(map.ScaleOf(0)[7], ToHalf(1.0F));
  EXPECT_EQ(map.ScaleOf(1)[9], ToHalf(1.0F));
  EXPECT_EQ(map.MeanOf(0)[7], ToHalf(-2.5F));
}

TEST(EqualizationTest, EqualizedKeysLieWithinOneAndComeBack) {
  const std::vector<Half> keys = Keys();
  const Equalization map = Build(keys);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t t = 0; t < kTokens; ++t) {
      const std::span<const Half> row(RowAt(keys, head, t), kDim);
      std::vector<Half> equalized(kDim);
      EqualizeRow(row, map.MeanOf(head), map.ScaleOf(head), equalized);
      std::vector<float> plain(kDim);
      ToFloat(equalized, plain);
      std::vector<float> restored(kDim);
      RestoreRow(plain, map.MeanOf(head), map.ScaleOf(head), restored);
      for (uint32_t c = 0; c < kDim; ++c) {
        EXPECT_LE(std::fabs(plain[c]), 1.001F);
        EXPECT_NEAR(restored[c], ToFloat(row[c]), 0x1p-11F * ToFloat(map.ScaleOf(head)[c]) * 1.01F);
      }
    }
  }
}

TEST(EqualizationTest, BeyondTheFp16RangeIsClamped) {
  const std::vector<Half> key = {ToHalf(60000.0F), ToHalf(-60000.0F), ToHalf(1.0F)};
  const std::vector<Half> mean = {ToHalf(-60000.0F), ToHalf(60000.0F), ToHalf(0.0F)};
  const std::vector<Half> scale = {ToHalf(0.5F), ToHalf(0.5F), ToHalf(0.5F)};
  std::vector<Half> dst(3);
  EqualizeRow(key, mean, scale, dst);
  EXPECT_EQ(dst[0], ToHalf(65504.0F));
  EXPECT_EQ(dst[1], ToHalf(-65504.0F));
  EXPECT_EQ(dst[2], ToHalf(2.0F));
}

TEST(EqualizationTest, ARowMayBeEqualizedInPlace) {
  std::vector<Half> row = {ToHalf(3.0F), ToHalf(-1.0F)};
  const std::vector<Half> mean = {ToHalf(1.0F), ToHalf(1.0F)};
  const std::vector<Half> scale = {ToHalf(2.0F), ToHalf(4.0F)};
  EqualizeRow(row, mean, scale, row);
  EXPECT_EQ(row[0], ToHalf(1.0F));
  EXPECT_EQ(row[1], ToHalf(-0.5F));
}

}  // namespace
}  // namespace kvant::codec
