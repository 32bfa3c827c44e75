#include "kvant/policy/raise.h"

#include <gtest/gtest.h>

#include <random>

#include "kvant/codec/progressive.h"

namespace kvant::policy {
namespace {

using codec::Tier;
using codec::TierCounts;

constexpr Tier kF = Tier::kFp16;
constexpr Tier kI = Tier::kInt8;
constexpr Tier kN = Tier::kInt4;
constexpr Tier kD = Tier::kDropped;

TEST(RaiseTest, TheHeaviestOfTheNearestTierGoFirst) {
  const std::vector<Tier> ids = {kN, kI, kI, kN, kN, kD, kF};
  const std::vector<float> mass = {9, 1, 2, 3, 8, 100, 0};
  EXPECT_EQ(RaiseTo({2, 2, 2, 1}, ids, mass), (std::vector{kI, kI, kF, kN, kN, kD, kF}));
  EXPECT_EQ(RaiseTo({3, 3, 0, 1}, ids, mass), (std::vector{kI, kF, kF, kI, kI, kD, kF}));
  EXPECT_EQ(RaiseTo({4, 0, 2, 1}, ids, mass), (std::vector{kF, kF, kF, kN, kN, kD, kF}));
  EXPECT_EQ(RaiseTo({1, 2, 3, 1}, ids, mass), ids);
  EXPECT_EQ(RaiseTo({0, 0, 7, 0}, ids, mass), ids) << "nothing is lowered";
  EXPECT_EQ(RaiseTo({7, 0, 0, 0}, ids, mass), (std::vector{kF, kF, kF, kF, kF, kD, kF}));
}

TEST(RaiseTest, TiesGoToTheEarlierToken) {
  EXPECT_EQ(RaiseTo({0, 2, 2, 0}, std::vector{kN, kN, kN, kN}, std::vector<float>(4, 1.0F)),
            (std::vector{kI, kI, kN, kN}));
}

TEST(RaiseTest, HeadsOfEqualCountsMoveAlike) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Tier> ids(50);
    for (Tier& id : ids) {
      id = static_cast<Tier>(random() % 4);
    }
    const TierCounts target{static_cast<uint32_t>(random() % 60), static_cast<uint32_t>(random() % 60), 0, 0};
    std::vector<codec::TierMoves> moves;
    for (int head = 0; head < 2; ++head) {
      std::vector<float> mass(ids.size());
      for (float& each : mass) {
        each = static_cast<float>(random() % 10);
      }
      const std::vector<Tier> raised = RaiseTo(target, ids, mass);
      const Result<codec::TierMoves> counted = codec::CountMoves(ids, raised);
      ASSERT_TRUE(counted.ok()) << counted.status().message();
      moves.push_back(*counted);
      EXPECT_GE(codec::CountTiers(raised).fp16, std::min(target.fp16, codec::CountTiers(ids).stored()));
      std::shuffle(ids.begin(), ids.end(), random);
    }
    EXPECT_EQ(moves[0], moves[1]);
  }
}

}  // namespace
}  // namespace kvant::policy
