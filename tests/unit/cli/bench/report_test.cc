#include "cli/bench/report.h"

#include <gtest/gtest.h>

namespace kvant::cli {
namespace {

BenchReport Sample() {
  BenchReport report;
  report.arms.push_back(ReportArm("slow", "tok/s", 1, 3'000'000, {0.5, 0.25, 1.0}));
  report.arms.push_back(ReportArm("fast", "tok/s", 1, 1'000'000, {0.125, 0.125, 0.125}));
  report.AddRatio(0, "x slow");
  report.columns.push_back({"kl", "KL", 4, {std::nullopt, 0.5}});
  report.facts = {{"context", 64}};
  report.notes = {"a note"};
  report.isa = "avx2";
  report.threads = 2;
  return report;
}

TEST(ReportArm, RatesComeFromTheTimes) {
  const ArmReport arm = ReportArm("arm", "Mtok/s", 8, 4'000'000'000, {2, 4, 1});
  EXPECT_EQ(arm.rate.median, 4);
  EXPECT_EQ(arm.rate.lower_quartile, 3);
  EXPECT_EQ(arm.rate.upper_quartile, 6);
  EXPECT_DOUBLE_EQ(arm.gb_s, 2);
}

TEST(ToJson, HoldsTheContractsFieldsAndTheExtras) {
  const Json expected = Json::parse(R"({
    "arms": [
      {"name": "slow", "median": 2.0, "spread": 1.5, "unit": "tok/s", "bytes": 3000000, "gb_s": 0.006},
      {"name": "fast", "median": 8.0, "spread": 0.0, "unit": "tok/s", "bytes": 1000000, "gb_s": 0.008}
    ],
    "ratio": [1.0, 4.0], "kl": [null, 0.5], "context": 64, "isa": "avx2", "threads": 2
  })");
  EXPECT_EQ(ToJson(Sample()), expected);
}

TEST(ToText, IsATableWithNotesBelow) {
  EXPECT_EQ(ToText(Sample()),
            "arm   median  spread   unit    bytes  GB/s  x slow      KL\n"
            "----  ------  ------  -----  -------  ----  ------  ------\n"
            "slow    2.00    1.50  tok/s  3.00 MB  0.01    1.00\n"
            "fast    8.00    0.00  tok/s  1.00 MB  0.01    4.00  0.5000\n"
            "\n"
            "a note\n"
            "avx2, 2 threads; spread: between the quartiles\n");
}

}  // namespace
}  // namespace kvant::cli
