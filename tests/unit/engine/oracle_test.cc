#include "support/oracle.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/engine_fixture.h"
#include "support/gguf_fixture.h"
#include "support/our_logits.h"
#include "support/temp_dir.h"

namespace kvant::test {
namespace {

std::vector<int32_t> TokensOfText(const std::string& model_path, size_t count) {
  auto info = engine::CheckGguf(model_path);
  EXPECT_TRUE(info.ok());
  auto tokenizer = engine::Tokenizer::Load(model_path, *info);
  EXPECT_TRUE(tokenizer.ok());
  std::ifstream file(EvalDataDir() + "/wikitext2/wiki.test.raw");
  std::string text(16384, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  auto tokens = (*tokenizer)->Encode(text.substr(0, text.rfind(' ')), false);
  EXPECT_TRUE(tokens.ok());
  tokens->resize(count);
  return *tokens;
}

TEST(Oracle, F32CopyAgreesOverAnF16Cache) {
  const std::string path = DefaultModelPath();
  if (path.empty() || EvalDataDir().empty()) {
    GTEST_SKIP() << "needs the default model and ../shared/evaldata";
  }
  const TempDir folder;
  const std::string copy = folder.File("f32.gguf");
  ASSERT_TRUE(WriteF32Model(path, copy).ok());
  auto loaded = LoadedModel::Load(copy);
  ASSERT_NE(loaded, nullptr);
  const std::vector<int32_t> tokens = TokensOfText(path, 512);
  const auto oracle = OracleLogits(copy, tokens, {});
  const auto ours = OurLogits(*loaded, tokens, 512);
  const Divergence divergence = Compare(oracle, ours, tokens, 0, loaded->model->params().vocab_size);
  std::printf("F32 copy, f16 cache, %zu positions: mean KL %.3g, max %.3g, perplexity %.5f (libllama %.5f)\n",
              tokens.size(), divergence.mean_kl, divergence.max_kl, divergence.perplexity_actual,
              divergence.perplexity_expected);
  EXPECT_LE(divergence.mean_kl, 2e-5);
  EXPECT_NEAR(divergence.perplexity_actual / divergence.perplexity_expected, 1.0, 5e-4);
}

TEST(Oracle, QuantizedFileIsWithinLibllamasOwnSpread) {
  const std::string path = DefaultModelPath();
  if (path.empty() || EvalDataDir().empty()) {
    GTEST_SKIP() << "needs the default model and ../shared/evaldata";
  }
  auto loaded = LoadedModel::Load(path);
  ASSERT_NE(loaded, nullptr);
  const std::vector<int32_t> tokens = TokensOfText(path, 512);
  const size_t vocab_size = loaded->model->params().vocab_size;
  const auto flash = OracleLogits(path, tokens, {.flash_attention = true});
  const auto plain = OracleLogits(path, tokens, {.flash_attention = false});
  const auto single = OracleLogits(path, tokens, {.flash_attention = true, .batch_tokens = 1});
  const auto ours = OurLogits(*loaded, tokens, 512);
  const Divergence spread_flash = Compare(flash, plain, tokens, 0, vocab_size);
  const Divergence spread_batch = Compare(flash, single, tokens, 0, vocab_size);
  const Divergence us = Compare(flash, ours, tokens, 0, vocab_size);
  const Divergence us_plain = Compare(plain, ours, tokens, 0, vocab_size);
  std::printf("libllama flash on/off KL %.3g, batch 512/1 KL %.3g; ours vs flash %.3g, vs plain %.3g; ppl %.4f %.4f\n",
              spread_flash.mean_kl, spread_batch.mean_kl, us.mean_kl, us_plain.mean_kl, us.perplexity_expected,
              us.perplexity_actual);
  const double spread = std::max(spread_flash.mean_kl, spread_batch.mean_kl);
  EXPECT_LE(us.mean_kl, 1.5 * spread);
}

// Rows on both sides of the first one whose window has left the beginning.
TEST(Oracle, GemmaIsWithinLibllamasOwnSpreadBeyondItsWindow) {
  const std::string path = GemmaModelPath();
  if (path.empty() || EvalDataDir().empty()) {
    GTEST_SKIP() << "needs Gemma 3 270M (scripts/gemma.sh, or KVANT_TEST_GEMMA) and ../shared/evaldata";
  }
  constexpr size_t kFirstRow = 480;
  auto loaded = LoadedModel::Load(path);
  ASSERT_NE(loaded, nullptr);
  ASSERT_EQ(loaded->model->params().windows.front(), 512U);
  const std::vector<int32_t> tokens = TokensOfText(path, 640);
  const size_t vocab_size = loaded->model->params().vocab_size;
  const auto flash = OracleLogits(path, tokens, {.flash_attention = true, .first_row = kFirstRow});
  const auto plain = OracleLogits(path, tokens, {.flash_attention = false, .first_row = kFirstRow});
  const auto ours = OurLogits(*loaded, tokens, 128, kFirstRow);
  const std::span<const int32_t> scored = std::span(tokens).subspan(kFirstRow);
  const Divergence spread = Compare(flash, plain, scored, 0, vocab_size);
  const Divergence us = Compare(flash, ours, scored, 0, vocab_size);
  for (uint32_t& window : const_cast<std::vector<uint32_t>&>(loaded->model->params().windows)) {
    window = window > 0 ? 1 << 20 : 0;
  }
  loaded->engine = std::make_unique<engine::Engine>(loaded->model.get(), loaded->backend.get());
  const Divergence without = Compare(flash, OurLogits(*loaded, tokens, 128, kFirstRow), scored, 0, vocab_size);
  std::printf("gemma3-270m: libllama flash on/off KL %.3g; ours vs flash %.3g, without windows %.3g; ppl %.4f %.4f\n",
              spread.mean_kl, us.mean_kl, without.mean_kl, us.perplexity_expected, us.perplexity_actual);
  EXPECT_LE(us.mean_kl, 1.5 * spread.mean_kl);
  EXPECT_GT(without.mean_kl, 10 * us.mean_kl);
}

}  // namespace
}  // namespace kvant::test
