#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kvant/policy/assign.h"
#include "kvant/policy/budget.h"
#include "kvant/policy/importance.h"

namespace kvant::policy {
namespace {

TierCounts Counts(BudgetRule rule, double budget, uint32_t n) {
  const Result<TierCounts> counts = CountsOf(rule, budget, n);
  EXPECT_TRUE(counts.ok()) << counts.status().message();
  return counts.ok() ? *counts : TierCounts{};
}

struct TableRow {
  double budget;
  TierCounts greedy;
  TierCounts balanced;
};

// methods.md 3.12, n = 2048: the authors' code truncates floating-point products.
constexpr TableRow kTable[] = {
    {0.25, {0, 0, 2048}, {0, 0, 2048}},        {0.30, {0, 409, 1639}, {81, 163, 1804}},
    {0.35, {0, 819, 1229}, {163, 327, 1558}},  {0.40, {0, 1228, 820}, {245, 491, 1312}},
    {0.45, {0, 1638, 410}, {327, 655, 1066}},  {0.50, {0, 2048, 0}, {409, 819, 820}},
    {0.55, {205, 1843, 0}, {491, 983, 574}},   {0.60, {410, 1638, 0}, {573, 1146, 329}},
    {0.65, {614, 1434, 0}, {655, 1310, 83}},   {0.70, {819, 1229, 0}, {819, 1228, 1}},
    {0.75, {1024, 1024, 0}, {1024, 1024, 0}},
};

TEST(Budget, CountsOfThePaper) {
  for (const TableRow& row : kTable) {
    EXPECT_EQ(Counts(BudgetRule::kGreedy, row.budget, 2048), row.greedy) << row.budget;
    EXPECT_EQ(Counts(BudgetRule::kBalanced, row.budget, 2048), row.balanced) << row.budget;
  }
}

TEST(Budget, AdaptiveNeverUsesInt4) {
  EXPECT_EQ(Counts(BudgetRule::kAdaptive, 0.3, 2000), (TierCounts{0, 1200, 0, 800}));
  EXPECT_EQ(Counts(BudgetRule::kAdaptive, 0.5, 2000), (TierCounts{0, 2000, 0, 0}));
  EXPECT_EQ(Counts(BudgetRule::kAdaptive, 0.75, 2000), (TierCounts{1000, 1000, 0, 0}));
}

TEST(Budget, IsKeptAndMonotone) {
  for (const BudgetRule rule : {BudgetRule::kGreedy, BudgetRule::kBalanced, BudgetRule::kAdaptive}) {
    for (const uint32_t n : {1U, 2U, 5U, 31U, 1000U, 4097U}) {
      double last = -1;
      for (int step = 0; step <= 75; ++step) {
        const double budget = 0.25 + 0.01 * step;
        const TierCounts counts = Counts(rule, budget, n);
        ASSERT_EQ(counts.total(), n);
        // Greedy rounds its last fp16 token to nearest: half a token's step beyond the budget at most.
        ASSERT_LE(BudgetOf(counts), budget + 0.25 / n + 1e-9) << "rule " << static_cast<int>(rule) << " n " << n;
        ASSERT_GE(BudgetOf(counts), last - 0.5 / n) << budget;
        last = BudgetOf(counts);
      }
    }
  }
}

TEST(Budget, OutOfRangeIsNamed) {
  for (const double budget : {0.2, 1.01, -1.0, std::nan("")}) {
    const auto counts = CountsOf(BudgetRule::kGreedy, budget, 10);
    EXPECT_EQ(counts.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(CountsOf(BudgetRule::kAdaptive, 0.2, 10).ok());
}

TEST(Importance, PositionHeuristicKeepsAPrefixAndASuffix) {
  struct Row {
    uint32_t n;
    double share;
    uint32_t prefix;
    uint32_t suffix_begin;
  };
  for (const Row& row : {Row{2048, 0.2, 93, 1732}, Row{4096, 0.2, 105, 3382}, Row{2048, 0.4, 409, 1638},
                         Row{2048, 0.8, 1228, 1638}, Row{4096, 0.6, 1637, 3276}}) {
    const auto kept = static_cast<uint32_t>(row.share * row.n);
    const std::vector<uint32_t> order = RankByImportance(PositionImportance(row.n));
    std::vector<bool> is_kept(row.n);
    for (uint32_t rank = 0; rank < kept; ++rank) {
      is_kept[order[rank]] = true;
    }
    const auto prefix = static_cast<uint32_t>(std::find(is_kept.begin(), is_kept.end(), false) - is_kept.begin());
    EXPECT_NEAR(prefix, row.prefix, 1) << row.n << " " << row.share;
    EXPECT_FALSE(is_kept[row.suffix_begin - 2]);
    EXPECT_TRUE(is_kept[row.suffix_begin + 1]);
    EXPECT_TRUE(is_kept[row.n - 1]);
  }
}

TEST(Importance, DecayIsExponentialInTheDistanceToTheEnd) {
  std::vector<float> mass = {1, 1, 1};
  ApplyRecencyDecay(0.5, mass);
  EXPECT_FLOAT_EQ(mass[2], 1.0F);
  EXPECT_FLOAT_EQ(mass[1], std::exp(-0.5F));
  EXPECT_FLOAT_EQ(mass[0], std::exp(-1.0F));
  std::vector<float> same = {3, 2, 1};
  ApplyRecencyDecay(0, same);
  EXPECT_EQ(same, (std::vector<float>{3, 2, 1}));
}

TEST(Importance, CombineLetsNoHeadOutvoteTheOthers) {
  const std::vector<std::vector<float>> heads = {{100, 300}, {3, 1}};
  const std::vector<float> sum = Combine(heads);
  EXPECT_FLOAT_EQ(sum[0], 1.0F);
  EXPECT_FLOAT_EQ(sum[1], 1.0F);
}

TEST(Assign, TiesGoToTheLowerIndexAndRanksDecide) {
  const std::vector<float> importance = {0.5F, 0.9F, 0.5F, 0.1F, 0.9F};
  EXPECT_EQ(RankByImportance(importance), (std::vector<uint32_t>{1, 4, 0, 2, 3}));
  const std::vector<Tier> tiers = AssignByRank({1, 2, 1, 1}, RankByImportance(importance));
  EXPECT_EQ(tiers, (std::vector<Tier>{Tier::kInt8, Tier::kFp16, Tier::kInt4, Tier::kDropped, Tier::kInt8}));
}

// Sorting by importance is optimal: swapping two tokens of different tiers never gains.
TEST(Assign, NoSwapGains) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> importance(60);
  std::generate(importance.begin(), importance.end(), [&] { return uniform(random); });
  const std::vector<Tier> tiers =
      AssignByRank(Counts(BudgetRule::kBalanced, 0.4, 60), RankByImportance(importance));
  for (size_t a = 0; a < tiers.size(); ++a) {
    for (size_t b = 0; b < tiers.size(); ++b) {
      EXPECT_FALSE(tiers[a] > tiers[b] && importance[a] > importance[b]) << a << " " << b;
    }
  }
}

TEST(Assign, SinksAreNeverLowered) {
  const std::vector<float> importance = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
  const TierCounts counts = Counts(BudgetRule::kGreedy, 0.6, 10);
  std::vector<Tier> tiers = AssignByRank(counts, RankByImportance(importance));
  PinSinks(4, tiers);
  const std::vector<Tier> within = AssignByRank({4, 6, 0, 0}, SinksFirst(4, RankByImportance(importance)));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tiers[i], Tier::kFp16);
    EXPECT_EQ(within[i], Tier::kFp16);
  }
  EXPECT_LE(BudgetOf(CountTiers(tiers)), 0.6 + 4 * 0.75 / 10);
}

TEST(Assign, RandomIsAPermutationAndRepeats) {
  std::vector<uint32_t> order = RankAtRandom(500, 42);
  EXPECT_EQ(order, RankAtRandom(500, 42));
  EXPECT_NE(order, RankAtRandom(500, 43));
  std::sort(order.begin(), order.end());
  for (uint32_t i = 0; i < order.size(); ++i) {
    ASSERT_EQ(order[i], i);
  }
}

TEST(Assign, EvenlyMeansEverywhere) {
  const TierCounts counts = Counts(BudgetRule::kBalanced, 0.5, 2048);
  const std::vector<Tier> tiers = AssignEvenly(counts);
  EXPECT_EQ(CountTiers(tiers), counts);
  for (size_t begin = 0; begin + 256 <= tiers.size(); begin += 256) {
    const TierCounts part = CountTiers(std::span(tiers).subspan(begin, 256));
    EXPECT_NEAR(part.fp16, 256.0 * counts.fp16 / 2048, 2);
    EXPECT_NEAR(part.int8, 256.0 * counts.int8 / 2048, 2);
    EXPECT_NEAR(part.int4, 256.0 * counts.int4 / 2048, 2);
  }
}

TEST(Selections, KeepWhatTheirPapersSay) {
  std::vector<float> importance(100, 0.0F);
  importance[50] = 1.0F;
  importance[60] = 0.5F;
  const auto kept = [&](Selection selection, double first_ratio) {
    std::vector<size_t> result;
    const std::vector<Tier> tiers = Select(selection, 0.1, first_ratio, importance);
    for (size_t i = 0; i < tiers.size(); ++i) {
      if (tiers[i] == Tier::kFp16) {
        result.push_back(i);
      } else {
        EXPECT_EQ(tiers[i], Tier::kDropped);
      }
    }
    return result;
  };
  EXPECT_EQ(kept(Selection::kPdTrimSuffix, 0), (std::vector<size_t>{0, 1, 2, 3, 94, 95, 96, 97, 98, 99}));
  EXPECT_EQ(kept(Selection::kPdTrimFirstLast, 0.3), (std::vector<size_t>{0, 1, 2, 93, 94, 95, 96, 97, 98, 99}));
  EXPECT_EQ(kept(Selection::kSws, 0), (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7, 50, 60}));
  EXPECT_EQ(kept(Selection::kSwsPrefix, 0).size(), 16U);
}

TEST(Selections, ShortPromptsAreKeptWhole) {
  for (const uint32_t n : {0U, 1U, 3U, 5U}) {
    const std::vector<float> importance(n, 1.0F);
    for (const Selection selection : {Selection::kPdTrimSuffix, Selection::kSws, Selection::kSwsPrefix}) {
      EXPECT_EQ(CountTiers(Select(selection, 0.3, 0, importance)).fp16, n);
    }
  }
}

}  // namespace
}  // namespace kvant::policy
