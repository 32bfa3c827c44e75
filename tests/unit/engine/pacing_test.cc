// A time to the first token, kept over a slow line by the budget of each layer.
#include <gtest/gtest.h>

#include <algorithm>

#include "kvant/engine/generate.h"
#include "support/engine_fixture.h"
#include "support/gguf_fixture.h"
#include "support/temp_dir.h"

namespace kvant::test {
namespace {

constexpr double kLinkGbps = 0.004;  // the prompt at fp16 takes about 2.5 seconds, at the lowest budget 0.9

class PacingTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = folder_.File("tiny.gguf");
    ASSERT_TRUE(WriteTinyModel({.num_layers = 16, .context_length = 1024}, path).ok());
    prefill_ = LoadedModel::Load(path, 1);
    decode_ = LoadedModel::Load(path, 1);
    ASSERT_TRUE(prefill_ != nullptr && decode_ != nullptr);
    tokenizer_ = engine::Tokenizer::Load(path, decode_->model->info()).value();
  }

  Result<engine::GenerateReport> Run(const char* word, std::optional<double> target_ms, uint32_t tokens = 300) {
    std::vector<int32_t> prompt;
    for (uint32_t i = 0; i < tokens; ++i) {
      prompt.push_back(static_cast<int32_t>(10 + i * 37 % 200));
    }
    engine::GenerateOptions options;
    options.max_tokens = 2;
    options.ignore_eos = true;
    return engine::GenerateDisaggregated(
        *prefill_->engine, *decode_->engine, *tokenizer_, prompt,
        {.wire = *codec::ParsePrecision(word), .link_gbps = kLinkGbps, .ttft_target_ms = target_ms}, options, {});
  }

  TempDir folder_;
  std::unique_ptr<LoadedModel> prefill_;
  std::unique_ptr<LoadedModel> decode_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
};

TEST_F(PacingTest, ATightTargetLowersTheBytesAndIsKept) {
  const auto loose = Run("spectrum:b=0.5", 60'000);
  const auto tight = Run("spectrum:b=0.5", 1'600);
  ASSERT_TRUE(loose.ok() && tight.ok()) << loose.status().message() << tight.status().message();
  ASSERT_TRUE(loose->pacing && tight->pacing);
  EXPECT_EQ(*loose->pacing->lowest_budget, 0.5) << "of the first layer, before which nothing was measured";
  EXPECT_EQ(*loose->pacing->highest_budget, 1.0);
  EXPECT_LT(tight->wire_bytes, 0.8 * static_cast<double>(loose->wire_bytes));
  EXPECT_LT(*tight->pacing->budget, *loose->pacing->budget);
  EXPECT_NEAR(tight->line_gbps, kLinkGbps, 0.2 * kLinkGbps);
  // Where the machine is so busy that the lowest budget would be late, too, the target is what that would have reached.
  const double aim = std::max(1'600.0, *tight->pacing->lowest_ttft_ms);
  EXPECT_LT(tight->ttft_ms, 1.15 * aim);
  EXPECT_GT(tight->ttft_ms, 0.7 * 1'600) << "time was left unused";
}

TEST_F(PacingTest, ATargetOutOfReachIsSaidToBe) {
  const auto report = Run("spectrum:b=0.5", 100);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_TRUE(report->pacing);
  EXPECT_EQ(*report->pacing->lowest_budget, 0.25);
  EXPECT_EQ(*report->pacing->highest_budget, 0.5);
  EXPECT_GT(*report->pacing->lowest_ttft_ms, 500);
  EXPECT_LE(*report->pacing->lowest_ttft_ms, report->ttft_ms);
}

TEST_F(PacingTest, NoTokenIsDroppedForATarget) {
  const auto adaptive = Run("spectrum:b=0.5,policy=adaptive", 100);
  ASSERT_TRUE(adaptive.ok()) << adaptive.status().message();
  EXPECT_EQ(*adaptive->pacing->lowest_budget, 0.5);
  EXPECT_EQ(adaptive->tiers.dropped, 0);
  for (const char* word : {"int8", "sws:0.5", "sws:0.5,keep=prefix", "pdtrim:0.5"}) {
    const auto refused = Run(word, 100);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << word;
    EXPECT_NE(refused.status().message().find("first token"), std::string::npos) << refused.status().message();
  }
}

TEST_F(PacingTest, WithoutEncodedTokensThereIsNoBudget) {
  const auto report = Run("spectrum:b=0.5", 100, 40);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_TRUE(report->pacing);
  EXPECT_FALSE(report->pacing->budget.has_value());
  EXPECT_FALSE(Run("spectrum:b=0.5", std::nullopt, 40)->pacing.has_value());
}

}  // namespace
}  // namespace kvant::test
