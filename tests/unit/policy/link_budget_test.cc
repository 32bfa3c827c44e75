#include "kvant/policy/link_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvant::policy {
namespace {

constexpr uint64_t kSmallest = 250;
constexpr uint64_t kLargest = 1000;

uint64_t BytesAt(double budget) { return static_cast<uint64_t>(budget * kLargest + 1e-9); }

double BudgetFor(const LinkState& link) { return LargestBudget(0.25, BytesForLayer(link), BytesAt); }

// A prompt sent layer by layer: when the last byte arrives, and the budgets.
struct Sent {
  double seconds = 0;
  std::vector<double> budgets;
};
Sent Send(double target, double bytes_per_second, uint32_t layers, double seconds_a_layer) {
  Sent sent;
  double now = 0;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    now += seconds_a_layer;
    const double behind = std::max(0.0, sent.seconds - now) * bytes_per_second;
    const LinkState link{target - now,    bytes_per_second, static_cast<uint64_t>(behind), layers - layer,
                         seconds_a_layer, kSmallest,        (layers - layer) * kSmallest};
    sent.budgets.push_back(BudgetFor(link));
    sent.seconds = std::max(sent.seconds, now) + static_cast<double>(BytesAt(sent.budgets.back())) / bytes_per_second;
  }
  return sent;
}

TEST(LinkBudgetTest, ALineWithTimeToSpareTakesEverything) {
  for (const double budget : Send(1000, 1e4, 20, 0.1).budgets) {
    EXPECT_EQ(budget, 1.0);
  }
}

TEST(LinkBudgetTest, ATightTargetIsMetByTheLargestBudgetThatMeetsIt) {
  // 20 layers in 2 seconds, then the line: 10 kB/s carry 90 kB a budget of 1 would take in 2 s + 20 · 0.1 s.
  for (const double target : {2.1, 3.0, 4.0, 6.0, 9.0, 12.0, 20.5}) {
    const Sent sent = Send(target, 1e3, 20, 0.1);
    const double smallest = Send(-1, 1e3, 20, 0.1).seconds;
    EXPECT_LE(sent.seconds, std::max(target, smallest) + 0.02) << target;
    if (target > smallest && target < 19) {
      EXPECT_GT(sent.seconds, 0.93 * target) << "time was left unused: " << target;
    }
  }
}

TEST(LinkBudgetTest, BudgetsOfOnePromptAreNearlyEqual) {
  const Sent sent = Send(10, 1e3, 30, 0.05);
  const auto [low, high] = std::minmax_element(sent.budgets.begin(), sent.budgets.end());
  EXPECT_LE(*high - *low, 0.02);
  EXPECT_NEAR(*low, 0.33, 0.02);
}

TEST(LinkBudgetTest, WhatComputingHidesIsFree) {
  // Prefill alone misses the target: smaller layers would not arrive earlier, but for the last ones.
  const Sent sent = Send(1, 1e4, 20, 0.1);
  for (size_t layer = 0; layer + 2 < sent.budgets.size(); ++layer) {
    EXPECT_EQ(sent.budgets[layer], 1.0) << layer;
  }
  EXPECT_EQ(sent.budgets.back(), 0.25);
  EXPECT_NEAR(sent.seconds, 20 * 0.1 + 0.025, 1e-9);
}

TEST(LinkBudgetTest, ATargetOutOfReachTakesTheSmallestBudget) {
  const Sent sent = Send(1, 100, 20, 0.1);
  for (const double budget : sent.budgets) {
    EXPECT_EQ(budget, 0.25);
  }
}

TEST(LinkBudgetTest, MoreTimeALargerBudgetMoreQueuedASmallerOne) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int i = 0; i < 10'000; ++i) {
    const auto layers = 1 + static_cast<uint32_t>(random() % 30);
    const LinkState link{unit(random) * 10 - 1, std::pow(10.0, 1 + 4 * unit(random)),
                         random() % 20'000,     layers,
                         unit(random) * 0.2,    kSmallest,
                         layers * kSmallest};
    const double budget = BudgetFor(link);
    EXPECT_GE(budget, 0.25);
    EXPECT_LE(budget, 1.0);
    LinkState later = link;
    later.seconds_left += unit(random) * 5;
    EXPECT_GE(BudgetFor(later), budget);
    LinkState faster = link;
    faster.bytes_per_second *= 1 + unit(random);
    LinkState fuller = link;
    fuller.queued_bytes += random() % 5000;
    if (SecondsAtLowest(fuller) <= link.seconds_left) {
      EXPECT_GE(BudgetFor(faster), budget);
      EXPECT_LE(BudgetFor(fuller), budget);
    }
    if (layers == 1 && budget > 0.25) {
      const double bytes = static_cast<double>(link.queued_bytes + BytesAt(budget));
      EXPECT_LE(bytes / link.bytes_per_second, std::max(link.seconds_left, SecondsAtLowest(link)) + 1e-9);
    }
  }
}

TEST(LinkBudgetTest, ALongLayerGetsTheLargerShare) {
  const LinkState global{10, 1000, 0, 2, 0.1, 4 * kSmallest, 5 * kSmallest};
  const LinkState window{10, 1000, 0, 2, 0.1, kSmallest, 5 * kSmallest};
  EXPECT_EQ(BytesForLayer(global), 8000U);
  EXPECT_EQ(BytesForLayer(window), 2000U);
}

TEST(LinkBudgetTest, BudgetsAreHundredthsWithinTheBytes) {
  EXPECT_EQ(LargestBudget(0.25, 0, BytesAt), 0.25);
  EXPECT_EQ(LargestBudget(0.25, UINT64_MAX, BytesAt), 1.0);
  for (int hundredths = 25; hundredths <= 100; ++hundredths) {
    EXPECT_EQ(LargestBudget(0.25, static_cast<uint64_t>(hundredths) * 10, BytesAt), hundredths / 100.0);
    EXPECT_EQ(LargestBudget(0.25, static_cast<uint64_t>(hundredths) * 10 + 9, BytesAt), hundredths / 100.0);
  }
}

TEST(LinkBudgetTest, ArrivalWaitsForTheLayerAndForTheLine) {
  EXPECT_DOUBLE_EQ(ArrivalOf(std::vector<ComputedLayer>{{1, 50}, {2, 50}, {3, 50}}, 100), 3.5) << "the line waits";
  EXPECT_DOUBLE_EQ(ArrivalOf(std::vector<ComputedLayer>{{1, 300}, {2, 300}, {3, 300}}, 100), 10.0) << "layers wait";
}

TEST(LinkBudgetTest, NoDeadlineDropsTokens) {
  EXPECT_EQ(LowestBudget(codec::TierRule::kGreedy), 0.25);
  EXPECT_EQ(LowestBudget(codec::TierRule::kBalanced), 0.25);
  EXPECT_EQ(LowestBudget(codec::TierRule::kAdaptive), 0.5);
  EXPECT_FALSE(LowestBudget(codec::TierRule::kPdTrim).has_value());
  EXPECT_FALSE(LowestBudget(codec::TierRule::kSws).has_value());
  EXPECT_FALSE(LowestBudget(codec::TierRule::kSwsPrefix).has_value());
}

}  // namespace
}  // namespace kvant::policy
