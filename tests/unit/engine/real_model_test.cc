// The default model with its Q4_1 weights: an answer does not depend on its neighbours or on the path it took.
#include <gtest/gtest.h>

#include <algorithm>

#include "kvant/engine/generate.h"
#include "support/engine_fixture.h"

namespace kvant::test {
namespace {

class RealModelTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = DefaultModelPath();
    if (path_.empty()) {
      GTEST_SKIP() << "needs the default model";
    }
    loaded_ = LoadedModel::Load(path_);
    ASSERT_NE(loaded_, nullptr);
    auto tokenizer = engine::Tokenizer::Load(path_, loaded_->model->info());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(tokenizer).value();
  }

  std::vector<int32_t> Prompt(int repeats, int offset) {
    std::string text;
    for (int i = 0; i < repeats; ++i) {
      text += "Item " + std::to_string(offset + i * 17 % 101) + " lies on shelf " + std::to_string(i) + ". ";
    }
    return *tokenizer_->Encode(text + "Item", false);
  }

  cache::Sequence Prefilled(const char* word, std::span<const int32_t> prompt, std::vector<float>* logits) {
    cache::Sequence sequence = loaded_->engine->NewSequence(*codec::ParsePrecision(word), &loaded_->account).value();
    engine::EncodeInPlace encode(sequence.precision(), codec::PromptTail::kByPosition, &loaded_->backend->pool());
    EXPECT_TRUE(loaded_->engine->Prefill(sequence, prompt, encode, {}, logits).ok());
    return sequence;
  }

  std::string path_;
  std::unique_ptr<LoadedModel> loaded_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
};

int32_t Likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST_F(RealModelTest, TheSameTextAloneAndAmongSevenNeighbours) {
  for (const char* word : {"fp16", "int8", "int4", "int8,eq=off", "int4,eq=off"}) {
    SCOPED_TRACE(word);
    std::vector<float> logits;
    std::vector<cache::Sequence> sequences;
    std::vector<int32_t> next;
    for (int i = 0; i < 8; ++i) {
      sequences.push_back(Prefilled(word, Prompt(i == 3 ? 20 : 1 + i * 2, i), &logits));
      next.push_back(Likeliest(logits));
    }
    cache::Sequence alone = Prefilled(word, Prompt(20, 3), &logits);
    int32_t token = Likeliest(logits);
    for (int step = 0; step < 24; ++step) {
      ASSERT_EQ(token, next[3]) << "step " << step;
      const engine::DecodeItem item{&alone, token};
      ASSERT_TRUE(loaded_->engine->Decode(std::span(&item, 1), &logits).ok());
      ASSERT_TRUE(alone.EncodeDue(nullptr).ok());
      std::vector<engine::DecodeItem> items;
      for (size_t i = 0; i < sequences.size(); ++i) {
        items.push_back({&sequences[i], next[i]});
      }
      std::vector<float> batch;
      ASSERT_TRUE(loaded_->engine->Decode(items, &batch).ok());
      const size_t vocab_size = logits.size();
      ASSERT_TRUE(std::equal(logits.begin(), logits.end(), batch.begin() + static_cast<ptrdiff_t>(3 * vocab_size)));
      token = Likeliest(logits);
      for (size_t i = 0; i < sequences.size(); ++i) {
        ASSERT_TRUE(sequences[i].EncodeDue(nullptr).ok());
        next[i] = Likeliest(std::span(batch).subspan(i * vocab_size, vocab_size));
      }
    }
  }
}

TEST_F(RealModelTest, TheSameTextLocallyAndDisaggregatedAtFp16) {
  const auto prefill = LoadedModel::Load(path_);
  ASSERT_NE(prefill, nullptr);
  engine::GenerateOptions options;
  options.max_tokens = 32;
  const std::vector<int32_t> prompt = Prompt(30, 0);
  const codec::Precision exact = *codec::ParsePrecision("fp16");
  const auto local = engine::GenerateLocal(*loaded_->engine, *tokenizer_, prompt, exact, options, {});
  const auto remote =
      engine::GenerateDisaggregated(*prefill->engine, *loaded_->engine, *tokenizer_, prompt, {exact}, options, {});
  ASSERT_TRUE(local.ok()) << local.status().message();
  ASSERT_TRUE(remote.ok()) << remote.status().message();
  EXPECT_EQ(local->text, remote->text);
  EXPECT_FALSE(local->text.empty());
}

TEST_F(RealModelTest, NoByteOfATextIsLostInSilence) {
  const auto lost = tokenizer_->Encode("ab\x04z", false);
  EXPECT_EQ(lost.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(lost.status().message().find("byte 2 (0x04)"), std::string::npos) << lost.status().message();
  const std::string text = "Plain text, \ttabs,\n\n\xE4\xBD\xA0\xE5\xA5\xBD and \xF0\x9F\x98\x80 <|im_end|> too.";
  for (const bool parse_special : {false, true}) {
    const auto kept = tokenizer_->Encode(text, parse_special);
    EXPECT_TRUE(kept.ok()) << kept.status().message();
  }
}

struct WireBound {
  const char* word;
  double share;  ///< of fp16, headers included
};

TEST_F(RealModelTest, WireBytesAtAThousandTokens) {
  const auto prefill = LoadedModel::Load(path_);
  ASSERT_NE(prefill, nullptr);
  std::vector<int32_t> prompt = Prompt(120, 0);
  ASSERT_GE(prompt.size(), 1000U);
  prompt.resize(1000);
  engine::GenerateOptions options;
  options.max_tokens = 1;
  for (const WireBound& bound : {WireBound{"int8,eq=off,sinks=0", 0.52}, WireBound{"int4,eq=off,sinks=0", 0.27}}) {
    const auto report = engine::GenerateDisaggregated(*prefill->engine, *loaded_->engine, *tokenizer_, prompt,
                                                      {*codec::ParsePrecision(bound.word)}, options, {});
    ASSERT_TRUE(report.ok()) << report.status().message();
    const double share = static_cast<double>(report->wire_bytes) / static_cast<double>(report->wire_bytes_fp16);
    std::printf("%s: %llu of %llu bytes, %.4f\n", bound.word, static_cast<unsigned long long>(report->wire_bytes),
                static_cast<unsigned long long>(report->wire_bytes_fp16), share);
    EXPECT_LE(share, bound.share);
  }
}

}  // namespace
}  // namespace kvant::test
