#include "cli/bench/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "cli/bench/divergence.h"

namespace kvant::cli {
namespace {

TEST(Summarize, InterpolatesBetweenTheNearestSamples) {
  const Summary odd = Summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(odd.lower_quartile, 2);
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.upper_quartile, 4);
  EXPECT_EQ(odd.spread(), 2);
  const Summary even = Summarize({40, 10, 30, 20});
  EXPECT_EQ(even.lower_quartile, 17.5);
  EXPECT_EQ(even.median, 25);
  EXPECT_EQ(even.upper_quartile, 32.5);
}

TEST(Summarize, OneSampleIsItsOwnMedian) {
  EXPECT_EQ(Summarize({7}).median, 7);
  EXPECT_EQ(Summarize({7}).spread(), 0);
}

/// A turn that writes its name and round into a log.
Turn LoggingTurn(const std::string& name, std::string* log) {
  return {name, [=](uint32_t round) {
            *log += name + std::to_string(round) + " ";
            return OkStatus();
          }};
}

TEST(Interleave, CallsTheTurnsRoundByRoundAndCountsNoWarmUp) {
  Console console(/*json=*/true);
  std::string log;
  const std::vector<Turn> turns = {LoggingTurn("a", &log), LoggingTurn("b", &log)};
  const auto seconds = Interleave(turns, {1, 3}, "test", console);
  ASSERT_TRUE(seconds.ok());
  EXPECT_EQ(log, "a0 b0 a1 b1 a2 b2 a3 b3 ");
  ASSERT_EQ(seconds->size(), 2U);
  EXPECT_EQ((*seconds)[0].size(), 3U);
  EXPECT_EQ((*seconds)[1].size(), 3U);
}

TEST(Interleave, TimesEachTurnByItself) {
  Console console(/*json=*/true);
  const auto pause = [](uint32_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return OkStatus();
  };
  std::string log;
  const std::vector<Turn> turns = {{"pause", pause}, LoggingTurn("b", &log)};
  const auto seconds = Interleave(turns, {0, 5}, "test", console);
  ASSERT_TRUE(seconds.ok());
  EXPECT_GE(Summarize((*seconds)[0]).median, 0.005);
  EXPECT_LT(Summarize((*seconds)[1]).median, Summarize((*seconds)[0]).median);
}

TEST(Interleave, StopsWhenTheTimeIsOverButNotBeforeThreeRounds) {
  Console console(/*json=*/true);
  std::string log;
  const std::vector<Turn> turns = {LoggingTurn("a", &log)};
  const auto seconds = Interleave(turns, {2, 100, /*seconds=*/0}, "test", console);
  ASSERT_TRUE(seconds.ok());
  EXPECT_EQ(log, "a0 a1 a2 a3 a4 ");
  EXPECT_EQ((*seconds)[0].size(), 3U);
}

TEST(Interleave, AnErrorNamesItsTurn) {
  Console console(/*json=*/true);
  const std::vector<Turn> turns = {{"broken", [](uint32_t) { return Status(StatusCode::kNumeric, "NaN"); }}};
  const auto seconds = Interleave(turns, {0, 1}, "test", console);
  ASSERT_FALSE(seconds.ok());
  EXPECT_EQ(seconds.status().code(), StatusCode::kNumeric);
  EXPECT_EQ(seconds.status().message(), "broken: NaN");
}

TEST(Divergence, IsZeroForTheSameDistributionAndKnownForAnother) {
  const std::vector<float> logits = {1, 2, 3};
  const std::vector<float> shifted = {101, 102, 103};
  EXPECT_NEAR(Divergence(logits, shifted), 0, 1e-12);
  const std::vector<float> even = {0, 0};
  const std::vector<float> quarter = {0, std::log(3.0F)};  // probabilities 1/4 and 3/4
  EXPECT_NEAR(Divergence(even, quarter), 0.5 * std::log(4.0 / 3.0), 1e-6);
}

}  // namespace
}  // namespace kvant::cli
