#include "kvant/policy/tier_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kvant/codec/precision.h"
#include "kvant/policy/assign.h"

namespace kvant::policy {
namespace {

using codec::Tier;
using codec::TierMap;

std::vector<std::vector<float>> RandomImportance(uint32_t heads, uint32_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<float>> rows(heads, std::vector<float>(tokens));
  for (std::vector<float>& row : rows) {
    std::generate(row.begin(), row.end(), [&] { return static_cast<float>(random() % 1000) * 0.001F; });
  }
  return rows;
}

TierMap Map(const std::string& word, const std::vector<std::vector<float>>& importance, uint32_t heads, uint32_t tokens,
            uint32_t first_position = 0) {
  const codec::Precision precision = codec::ParsePrecision(word).value();
  Result<TierMap> map = MakeTierMap(*precision.spectrum, {heads, first_position, tokens, importance});
  EXPECT_TRUE(map.ok()) << map.status().message();
  return map.ok() ? *map : TierMap{};
}

constexpr const char* kRules[] = {"greedy", "sink-protect", "balanced", "balanced-even", "adaptive", "random"};

TEST(TierMapTest, EveryHeadHasTheCountsOfTheBudget) {
  for (const char* rule : kRules) {
    for (const uint32_t tokens : {1U, 5U, 130U, 2048U}) {
      for (const char* budget : {"0.25", "0.3", "0.5", "0.62", "1"}) {
        const auto importance = RandomImportance(3, tokens, tokens);
        const TierMap map = Map(std::string("spectrum:b=") + budget + ",policy=" + rule, importance, 3, tokens, 4);
        ASSERT_EQ(map.ids.size(), 3U * tokens);
        EXPECT_LE(BudgetOf(map.counts), std::stod(budget) + 0.25 / tokens + 1e-9) << rule << ' ' << budget;
        for (uint32_t head = 0; head < 3; ++head) {
          EXPECT_EQ(codec::CountTiers(map.OfHead(head)), map.counts) << rule;
        }
      }
    }
  }
}

TEST(TierMapTest, TheMoreImportantNeverGetsTheLowerTier) {
  const auto importance = RandomImportance(2, 700, 1);
  for (const char* word : {"spectrum:b=0.3", "spectrum:b=0.6", "spectrum:b=0.4,policy=balanced", "sws:0.3",
                           "spectrum:b=0.3,policy=adaptive"}) {
    const TierMap map = Map(word, importance, 2, 700, 4);
    for (uint32_t head = 0; head < 2; ++head) {
      const auto tiers = map.OfHead(head);
      const std::vector<uint32_t> ranking = RankByImportance(importance[head]);
      // Selections keep their first four tokens whatever their importance.
      const bool selects = std::string(word).starts_with("sws");
      Tier last = Tier::kFp16;
      for (const uint32_t token : ranking) {
        if (selects && token < 4) {
          continue;
        }
        EXPECT_GE(tiers[token], last) << word << " token " << token;
        last = tiers[token];
      }
    }
  }
}

TEST(TierMapTest, EqualImportanceGoesToTheEarlierToken) {
  const std::vector<std::vector<float>> flat = {std::vector<float>(100, 0.5F)};
  const TierMap map = Map("spectrum:b=0.3", flat, 3, 100);
  EXPECT_TRUE(std::is_sorted(map.ids.begin(), map.ids.begin() + 100));
  for (uint32_t head = 1; head < 3; ++head) {  // one row ranks all heads
    EXPECT_TRUE(std::equal(map.ids.begin(), map.ids.begin() + 100, map.OfHead(head).begin()));
  }
}

TEST(TierMapTest, SinkProtectPinsTheFirstFourTokensOfThePrompt) {
  const auto importance = RandomImportance(3, 200, 2);
  const TierMap all = Map("spectrum:b=0.3,policy=sink-protect", importance, 3, 200, 0);
  const TierMap two = Map("spectrum:b=0.3,policy=sink-protect", importance, 3, 200, 2);
  const TierMap none = Map("spectrum:b=0.3,policy=sink-protect", importance, 3, 200, 4);
  EXPECT_EQ(all.counts.fp16, 4U);
  EXPECT_EQ(two.counts.fp16, 2U);
  EXPECT_EQ(none.counts, Map("spectrum:b=0.3", importance, 3, 200, 4).counts);
  for (uint32_t head = 0; head < 3; ++head) {
    EXPECT_TRUE(std::all_of(all.OfHead(head).begin(), all.OfHead(head).begin() + 4,
                            [](Tier tier) { return tier == Tier::kFp16; }));
  }
  EXPECT_LE(BudgetOf(all.counts), 0.3 + 4 * 0.75 / 200 + 1e-9);
}

TEST(TierMapTest, DecayPrefersTheRecent) {
  const std::vector<std::vector<float>> flat = {std::vector<float>(100, 0.5F)};
  const TierMap map = Map("spectrum:b=0.4,decay=0.01", flat, 1, 100);
  EXPECT_TRUE(std::is_sorted(map.ids.rbegin(), map.ids.rend()));
}

TEST(TierMapTest, PositionsOfTheAuthorsHeuristicCountFromThePromptsBeginning) {
  // methods.md 3.12: at n = 2048 the best fifth is the first 93 tokens and those from 1732 on.
  const TierMap map = Map("spectrum:b=0.3,importance=position", {}, 1, 2044, 4);
  for (uint32_t i = 0; i < 2044; ++i) {
    const uint32_t position = i + 4;
    const bool high = map.ids[i] != Tier::kInt4;
    if (position < 88 || position >= 1740) {
      EXPECT_TRUE(high) << position;
    } else if (position > 100 && position < 1725) {
      EXPECT_FALSE(high) << position;
    }
  }
}

TEST(TierMapTest, BothReadingsOfPdTrim) {
  const TierMap suffix = Map("pdtrim:0.5", {}, 2, 100);
  const TierMap both = Map("pdtrim:0.5,first=0.4", {}, 2, 100);
  EXPECT_EQ(suffix.counts, (codec::TierCounts{50, 0, 0, 50}));
  EXPECT_EQ(both.counts, (codec::TierCounts{50, 0, 0, 50}));
  EXPECT_EQ(suffix.ids[3], Tier::kFp16);
  EXPECT_EQ(suffix.ids[4], Tier::kDropped);
  EXPECT_EQ(both.ids[19], Tier::kFp16);
  EXPECT_EQ(both.ids[20], Tier::kDropped);
  EXPECT_EQ(both.ids[70], Tier::kFp16);
}

TEST(TierMapTest, RandomIsTheSameEveryTime) {
  const TierMap a = Map("spectrum:b=0.3,policy=random", {}, 2, 500);
  const TierMap b = Map("spectrum:b=0.3,policy=random", {}, 2, 500);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_FALSE(std::is_sorted(a.ids.begin(), a.ids.begin() + 500));
}

TEST(TierMapTest, AdaptiveGivesNoTokenInt4) {
  const auto importance = RandomImportance(2, 500, 3);
  for (int hundredths = 5; hundredths <= 100; hundredths += 5) {
    const std::string budget = std::to_string(hundredths / 100.0);
    const TierMap map = Map("spectrum:b=" + budget + ",policy=adaptive", importance, 2, 500);
    EXPECT_EQ(map.counts.int4, 0U) << budget;
    EXPECT_EQ(map.counts.dropped > 0, hundredths < 50) << budget;
  }
}

TEST(TierMapTest, SwsKeepsTheBestTokensOrThePrefix) {
  std::vector<std::vector<float>> importance(2, std::vector<float>(100, 0.0F));
  importance[0][70] = importance[1][90] = 1.0F;
  const TierMap best = Map("sws:0.2", importance, 2, 100);
  EXPECT_EQ(best.OfHead(0)[70], Tier::kFp16);
  EXPECT_EQ(best.OfHead(1)[70], Tier::kDropped);
  for (const auto& [word, kept] : {std::pair("sws:0.2,keep=prefix", 20U), std::pair("sws:0.05,keep=prefix", 16U)}) {
    const TierMap prefix = Map(word, {}, 2, 100);
    EXPECT_EQ(prefix.counts, (codec::TierCounts{kept, 0, 0, 100 - kept}));
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t token = 0; token < 100; ++token) {
        EXPECT_EQ(prefix.OfHead(head)[token], token < kept ? Tier::kFp16 : Tier::kDropped);
      }
    }
  }
}

}  // namespace
}  // namespace kvant::policy
