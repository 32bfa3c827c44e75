#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kvant/policy/pair_map.h"

namespace kvant::policy {
namespace {

using codec::PairLayout;
using codec::PairPrecision;
using codec::PairRule;
using codec::PairScore;

std::vector<Half> Halves(std::initializer_list<float> values) {
  std::vector<Half> halves;
  for (const float value : values) halves.push_back(ToHalf(value));
  return halves;
}

// Two query rows, two key rows, four channels; pairs (0, 2), (1, 3) or (0, 1), (2, 3).
PairStatistics Small(PairLayout pairs) {
  PairStatistics statistics(pairs, 4);
  const float queries[] = {3, 0, 4, 1, 0, 2, 0, 0};
  statistics.AddQueries(queries, 2, 4);
  const std::vector<Half> keys = Halves({1, 2, 0, 0, 5, -2, 12, 0});
  statistics.AddKeys(keys.data(), 2, 4);
  return statistics;
}

TEST(PairStatistics, NormsAreThoseOfThePairs) {
  const PairStatistics halves = Small(PairLayout::kHalfSplit);
  EXPECT_DOUBLE_EQ(halves.QueryNorm(0), 2.5);   // 5 and 0
  EXPECT_DOUBLE_EQ(halves.QueryNorm(1), 1.5);   // 1 and 2
  EXPECT_DOUBLE_EQ(halves.KeyNorm(0), 7.0);     // 1 and 13
  EXPECT_DOUBLE_EQ(halves.KeyNorm(1), 2.0);     // 2 and 2
  EXPECT_DOUBLE_EQ(halves.KeyEnergy(0), 85.0);  // 1 and 169
  EXPECT_DOUBLE_EQ(halves.QueryEnergy(0), 12.5);
  EXPECT_DOUBLE_EQ(halves.Magnitude(0), 9.0);  // 3 and 6
  EXPECT_DOUBLE_EQ(halves.Range(0), 16.0);     // 4 and 12
  EXPECT_DOUBLE_EQ(halves.QueryTimesRange(0), 1.5 * 4 + 2 * 12);
  const PairStatistics interleaved = Small(PairLayout::kInterleaved);
  EXPECT_DOUBLE_EQ(interleaved.QueryNorm(0), 2.5);  // 3 and 2
  EXPECT_NEAR(interleaved.KeyNorm(0), (std::sqrt(5.0) + std::sqrt(29.0)) / 2, 1e-6);
  EXPECT_DOUBLE_EQ(interleaved.KeyNorm(1), 6.0);
}

// Chunks of any size, and heads of a group in any order, say the same.
TEST(PairStatistics, ChunksAddUp) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> queries(40 * 64);
  std::vector<Half> keys(40 * 64);
  for (float& q : queries) q = normal(random);
  for (Half& k : keys) k = ToHalf(normal(random));
  PairStatistics whole(PairLayout::kHalfSplit, 64);
  whole.AddQueries(queries.data(), 40, 64);
  whole.AddKeys(keys.data(), 40, 64);
  PairStatistics parts(PairLayout::kHalfSplit, 64);
  for (size_t first : {20, 0, 33, 15}) {
    const size_t count = first == 20 ? 13 : first == 0 ? 15 : first == 33 ? 7 : 5;
    parts.AddQueries(queries.data() + first * 64, count, 64);
    parts.AddKeys(keys.data() + first * 64, count, 64);
  }
  for (uint32_t pair = 0; pair < 32; ++pair) {
    EXPECT_NEAR(whole.QueryNorm(pair) * whole.KeyNorm(pair), parts.QueryNorm(pair) * parts.KeyNorm(pair), 1e-9);
    EXPECT_EQ(whole.Range(pair), parts.Range(pair));
  }
}

TEST(PairStatistics, MoreBitsLoseLess) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<Half> keys(128 * 32);
  for (Half& k : keys) k = ToHalf(normal(random));
  const std::vector<float> queries(32, 2.0F);
  for (const PairRule rule : {PairRule::kMinMax, PairRule::kMidRise}) {
    PairStatistics statistics(PairLayout::kInterleaved, 32);
    statistics.AddQueries(queries.data(), 1, 32);
    statistics.AddKeyErrors({rule}, keys.data(), 128, 32);
    for (uint32_t pair = 0; pair < 16; ++pair) {
      for (uint32_t bits = 2; bits <= 4; ++bits) {
        EXPECT_LT(statistics.Error(pair, bits), statistics.Error(pair, bits - 1));
      }
      // q² = 4, two channels; quarter points of 128 normal values lose 0.62 of the variance (methods.md section 2).
      EXPECT_NEAR(statistics.Error(pair, 1), 4 * 2 * 0.62, 4 * 2 * 0.35);
    }
  }
}

TEST(PairScores, EveryRuleReadsItsOwnStatistics) {
  const PairStatistics s = Small(PairLayout::kHalfSplit);
  const auto scores = [&](PairScore rule) { return PairScores(rule, {}, s, 0); };
  EXPECT_EQ(scores(PairScore::kNormProduct), (std::vector<double>{17.5, 3.0}));
  EXPECT_EQ(scores(PairScore::kKeyNorm), (std::vector<double>{7.0, 2.0}));
  EXPECT_EQ(scores(PairScore::kEnergySum), (std::vector<double>{97.5, 2.5 + 4.0}));
  EXPECT_EQ(scores(PairScore::kMagnitude), (std::vector<double>{9.0, 2.0}));
  EXPECT_EQ(scores(PairScore::kRange), (std::vector<double>{16.0, 4.0}));
  EXPECT_EQ(scores(PairScore::kQueryRange), (std::vector<double>{30.0, 4.0}));
  EXPECT_EQ(PairScores(PairScore::kRandom, {}, s, 7), PairScores(PairScore::kRandom, {}, s, 7));
  EXPECT_NE(PairScores(PairScore::kRandom, {}, s, 7), PairScores(PairScore::kRandom, {}, s, 8));
}

TEST(SelectSalient, TakesWholePairsAndTheLowerIndexOfTies) {
  const std::vector<double> scores = {1, 5, 3, 3, 3, 0};
  EXPECT_EQ(SelectSalient(scores, 50), (std::vector<bool>{false, true, true, true, false, false}));
  EXPECT_EQ(SelectSalient(scores, 49.9), (std::vector<bool>{false, true, true, false, false, false}));
  const auto count = [](uint32_t pairs, double percent) {
    const std::vector<bool> salient = SelectSalient(std::vector<double>(pairs), percent);
    return std::count(salient.begin(), salient.end(), true);
  };
  EXPECT_EQ(count(64, 50), 32);  // the paper's two settings at d = 128 and at d = 64
  EXPECT_EQ(count(64, 35), 22);
  EXPECT_EQ(count(32, 50), 16);
  EXPECT_EQ(count(32, 35), 11);
  EXPECT_EQ(count(100, 35), 35);
  EXPECT_EQ(count(64, 0), 0);
  EXPECT_EQ(count(64, 100), 64);
}

// methods.md 10.2: scores (16, 4, 1, 0.25), errors s · 4^-b, 3 bits on the mean.
TEST(AllocateBits, BlockGtqsGoldenVector) {
  std::vector<double> errors;
  for (const double s : {16.0, 4.0, 1.0, 0.25}) {
    for (int b = 1; b <= 8; ++b) errors.push_back(s * std::pow(4.0, -b));
  }
  EXPECT_EQ(AllocateBits(errors, 8, 12), (std::vector<uint8_t>{5, 4, 2, 1}));
  EXPECT_EQ(AllocateBits(errors, 8, 4), (std::vector<uint8_t>{1, 1, 1, 1}));
  EXPECT_EQ(AllocateBits(errors, 8, 32), (std::vector<uint8_t>{8, 8, 8, 8}));
}

// Two bits that only together are worth something.
TEST(AllocateBits, LooksBeyondAStepThatGainsNothing) {
  const std::vector<double> errors = {10, 10, 0, 0, 4, 2, 1, 1};
  EXPECT_EQ(AllocateBits(errors, 4, 4), (std::vector<uint8_t>{3, 1}));
  EXPECT_EQ(AllocateBits(errors, 4, 3), (std::vector<uint8_t>{1, 2}));
}

// methods.md 10.2, bit accounting: payload 2.0 for 3/1 on 32 of 64 pairs, 2.03125 for 4/1 on 22.
TEST(MakeWidthMap, PaysWhatThePaperSays) {
  PairStatistics statistics(PairLayout::kHalfSplit, 128);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> queries(16 * 128);
  std::vector<Half> keys(128 * 128);
  for (float& q : queries) q = normal(random);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = ToHalf(normal(random) * (1.0F + static_cast<float>(i % 128 % 64)));
  statistics.AddQueries(queries.data(), 16, 128);
  statistics.AddKeys(keys.data(), 128, 128);
  statistics.AddKeyErrors({PairRule::kMidRise}, keys.data(), 128, 128);
  const auto map = [&](const char* word) {
    return MakeWidthMap(codec::ParsePairPrecision(word).value(), statistics, 1);
  };
  EXPECT_EQ(map("pnmix:3/1@50%").BitsPerKey(), 256U);
  EXPECT_EQ(map("pnmix:4/1@35%").BitsPerKey(), 260U);
  EXPECT_EQ(map("pairs:2").BitsPerKey(), 256U);
  EXPECT_EQ(map("pairs:2.5").BitsPerKey(), 320U);
  EXPECT_EQ(map("pairs:1").BitsPerKey(), 128U);
  EXPECT_EQ(map("pairs:4").BitsPerKey(), 512U);
  // Keys grow with the pair: the widest pairs are the last ones.
  EXPECT_EQ(map("pnmix:3/1@50%").widths[63], 3);
  EXPECT_EQ(map("pnmix:3/1@50%").widths[0], 1);
  EXPECT_EQ(map("pairs:2").widths[0], 1);
  EXPECT_GE(map("pairs:2").widths[63], 2);
  const double fp16_bytes = 2.0 * 128 * 2;
  const codec::PairFormat format{128, 128, 2, 128};
  const double page = static_cast<double>(codec::PairPageLayout::Make(format, map("pnmix:3/1@50%")).total_bytes);
  EXPECT_NEAR(fp16_bytes / (page / 128), 7.11, 0.01);
  // avg(T) = p + m/G + S (16 - p - m/G) / T of keys alone, and a bit a pair for the mask
  const auto effective = [](double payload, int tokens) {
    const double page_bits = payload + 32.0 / 128;
    return page_bits + (32 * (16 - page_bits) + 0.5) / tokens;
  };
  constexpr double kHalf[] = {2.6802, 2.4651, 2.3575, 2.3038, 2.2769, 2.2634};   // (3, 1, 32)
  constexpr double kThird[] = {2.7104, 2.4958, 2.3885, 2.3349, 2.3081, 2.2947};  // (4, 1, 22)
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(effective(2.0, 1024 << i), kHalf[i], 1e-4);
    EXPECT_NEAR(effective((4.0 * 22 + 42) / 64, 1024 << i), kThird[i], 1e-4);
  }
}

// Energies (16, 4, 1, 0.25) once more, as pairs of a head: with four bits at most, 2.5 on the mean.
TEST(MakeWidthMap, BlockGtqGivesBitsByEnergy) {
  PairStatistics statistics(PairLayout::kInterleaved, 8);
  const std::vector<float> queries = {2, 2, 1, 1, 0.5F, 0.5F, 0.25F, 0.25F};
  const std::vector<Half> keys = {ToHalf(2),    ToHalf(2),    ToHalf(1),     ToHalf(1),
                                  ToHalf(0.5F), ToHalf(0.5F), ToHalf(0.25F), ToHalf(0.25F)};
  statistics.AddQueries(queries.data(), 1, 8);
  statistics.AddKeys(keys.data(), 1, 8);
  const auto widths = [&](const char* word) {
    return MakeWidthMap(codec::ParsePairPrecision(word).value(), statistics, 1).widths;
  };
  EXPECT_EQ(widths("pairs:2.5,rule=energy"), (std::vector<uint8_t>{4, 3, 2, 1}));
  EXPECT_EQ(widths("pairs:2.75,rule=energy"), (std::vector<uint8_t>{4, 4, 2, 1}));
}

TEST(MakeWidthMap, MeasuredErrorIsTheRuleOfTheTwoWidthsToo) {
  PairStatistics statistics(PairLayout::kInterleaved, 32);
  std::vector<float> queries(32, 0.1F);
  queries[6] = queries[7] = 5.0F;  // pair 3 is what queries look at
  statistics.AddQueries(queries.data(), 1, 32);
  std::vector<Half> keys(128 * 32);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (Half& k : keys) k = ToHalf(normal(random));
  statistics.AddKeys(keys.data(), 128, 32);
  statistics.AddKeyErrors({PairRule::kMinMax}, keys.data(), 128, 32);
  for (const char* word : {"pnmix:3/1@6.25%,rule=error", "pnmix:3/1@6.25%,rule=qrange", "pnmix:3/1@6.25%"}) {
    const codec::WidthMap map = MakeWidthMap(codec::ParsePairPrecision(word).value(), statistics, 1);
    EXPECT_EQ(map.widths[3], 3) << word;
    EXPECT_EQ(std::accumulate(map.widths.begin(), map.widths.end(), 0), 18) << word;
  }
}

}  // namespace
}  // namespace kvant::policy
