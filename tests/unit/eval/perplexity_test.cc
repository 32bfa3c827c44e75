#include "kvant/eval/perplexity.h"

#include <gtest/gtest.h>

#include "support/tiny_oracle.h"

namespace kvant::eval {
namespace {

class PerplexityTest : public testing::Test {
 protected:
  std::vector<PerplexityResult> Score(const std::vector<const char*>& words, const PerplexityOptions& options,
                                      const test::TinyModelParams& model = {.context_length = 1024}) {
    const std::string path = test::WriteTiny(folder_, "tiny.gguf", model);
    const auto loaded = test::LoadedModel::Load(path);
    EXPECT_NE(loaded, nullptr);
    std::vector<Candidate> candidates;
    for (const char* word : words) candidates.push_back(ParseCandidate(word).value());
    const auto tokens = test::RandomTokens(loaded->model->params().vocab_size, 400);
    Result<std::vector<PerplexityResult>> results = Perplexity(*loaded->engine, tokens, candidates, options);
    EXPECT_TRUE(results.ok()) << results.status().message();
    return results.ok() ? std::move(results).value() : std::vector<PerplexityResult>();
  }
  static PerplexityOptions Prompt() {
    PerplexityOptions options;
    options.window_tokens = 400;
    options.prompt_tokens = 330;
    return options;
  }

 private:
  test::TempDir folder_;
};

TEST_F(PerplexityTest, AttentionMovesTheMoreTheFewerBitsKeysHave) {
  const auto results = Score({"int8", "pairs:4,v=8", "pairs:3,v=8", "pairs:2,v=8", "pairs:1,v=8"}, Prompt());
  ASSERT_EQ(results.size(), 6U);
  EXPECT_EQ(results[0].attention_kl->mean, 0);
  for (size_t i = 0; i + 1 < results.size(); ++i) {
    ASSERT_TRUE(results[i + 1].attention_kl.has_value());
    EXPECT_LT(results[i].attention_kl->mean, results[i + 1].attention_kl->mean) << i;
  }
}

TEST_F(PerplexityTest, AttentionDoesNotSeeValues) {
  const auto results = Score({"pairs:2,v=8", "pairs:2,v=2"}, Prompt());
  EXPECT_EQ(results[1].attention_kl->mean, results[2].attention_kl->mean);
  EXPECT_LT(results[1].kl.mean, results[2].kl.mean);
}

// The reference's pages are the cache's: what differs is fp16's rounding of what was decoded, and the path of kernels.
TEST_F(PerplexityTest, AReferenceOfACachesOwnPagesAgreesWithTheCache) {
  const auto results = Score({"pairs:2,v=8", "keys:pairs:2", "keys:pairs:2,v=2"}, Prompt());
  EXPECT_NEAR(results[2].attention_kl->mean, results[1].attention_kl->mean, 0.01 * results[1].attention_kl->mean);
  EXPECT_NEAR(results[2].kl.mean, results[1].kl.mean, 0.2 * results[1].kl.mean);
  EXPECT_EQ(results[2].attention_kl->mean, results[3].attention_kl->mean);
  EXPECT_EQ(results[2].kl.mean, results[3].kl.mean);  // values are exact, whatever their bits were to be
  EXPECT_EQ(results[2].bits.effective, results[3].bits.effective);
  EXPECT_GT(results[2].bits.payload, results[1].bits.payload);
}

// fp16 among the candidates is a replay of the recorded prompt, which two of three layers have mostly forgotten.
TEST_F(PerplexityTest, AReplayedPromptIsThePromptWhereLayersHaveWindows) {
  const test::TinyModelParams windowed{
      .architecture = "gemma3", .num_layers = 3, .context_length = 1024, .window = 64, .window_pattern = 3};
  const auto results = Score({"fp16", "int8", "pairs:3,g=32", "keys:pairs:3,g=32,v=8", "kitty:12.5%,g=32",
                              "keys:reselect:pairs:2,g=32", "spectrum:b=0.3,int4=pages,sinks=0"},
                             Prompt(), windowed);
  ASSERT_EQ(results.size(), 8U);
  EXPECT_EQ(results[1].kl.mean, 0);
  EXPECT_EQ(results[1].attention_kl->mean, 0);
  EXPECT_LT(results[2].attention_kl->mean, 1e-3);
  EXPECT_LT(results[2].kl.mean, 1e-3);
  EXPECT_NEAR(results[4].attention_kl->mean, results[3].attention_kl->mean, 0.01 * results[3].attention_kl->mean);
  for (const PerplexityResult& result : results) {
    EXPECT_TRUE(result.attention_kl.has_value());
    EXPECT_LE(result.bits.payload, result.bits.effective);
  }
}

TEST_F(PerplexityTest, EveryReferenceIsScored) {
  const auto results = Score({"kitty:12.5%", "kitty:100%", "keys:kitty:12.5%,rec=midrise", "reselect:pnmix:3/1@50%",
                              "keys:reselect:pairs:2", "spectrum:b=0.25,int4=pages", "spectrum:b=0.25"},
                             Prompt());
  ASSERT_EQ(results.size(), 8U);
  EXPECT_GT(results[1].attention_kl->mean, results[2].attention_kl->mean);
  EXPECT_GT(results[6].bits.payload, 0);
  EXPECT_EQ(results[6].bits.payload, results[7].bits.payload);
  EXPECT_LT(results[6].attention_kl->mean, 0.1);
  EXPECT_GT(results[6].attention_kl->mean, 0);
}

TEST_F(PerplexityTest, AttentionIsComparedWhereItCanBe) {
  EXPECT_FALSE(Score({"pdtrim:0.5"}, Prompt())[1].attention_kl.has_value());
  PerplexityOptions all = Prompt();
  all.protocol = Protocol::kAllQuantized;
  EXPECT_FALSE(Score({"int8"}, all)[1].attention_kl.has_value());
}

}  // namespace
}  // namespace kvant::eval
