#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvant/engine/generate.h"
#include "support/engine_fixture.h"
#include "support/gguf_fixture.h"
#include "support/temp_dir.h"

namespace kvant::test {

/// Every kind of precision.
inline constexpr const char* kEveryKind[] = {"fp16",
                                             "int8",
                                             "int4",
                                             "spectrum:b=0.4",
                                             "spectrum:b=0.3,int4=pages",
                                             "progressive:b=0.4",
                                             "pnmix:3/1@50%,v=2",
                                             "pairs:2.0,v=2",
                                             "pairs:2.0,v=3",
                                             "pairs:2.0,v=4",
                                             "pairs:2.0,v=8"};

inline std::vector<int32_t> SomeTokens(size_t count, uint64_t seed) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    token = static_cast<int32_t>((seed >> 33) % 256);
  }
  return tokens;
}

inline int32_t Likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Prompts and steps of a tiny model, 9 query heads over 3.
class DecodeFixture : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteTinyModel({.num_q_heads = 9, .num_kv_heads = 3, .context_length = 4096}, path()).ok());
    Load(path());
  }
  std::string path() const { return folder_.File("tiny.gguf"); }
  void Load(const std::string& model) {
    loaded_ = LoadedModel::Load(model, 1);
    ASSERT_NE(loaded_, nullptr);
  }

  cache::Sequence Prefilled(const std::string& word, std::span<const int32_t> tokens, std::vector<float>* logits,
                            codec::PromptTail tail = codec::PromptTail::kByPosition, uint32_t chunk_tokens = 512) {
    cache::Sequence sequence = loaded_->engine->NewSequence(*codec::ParsePrecision(word), &loaded_->account).value();
    engine::EncodeInPlace encode(sequence.precision(), tail, &loaded_->backend->pool());
    engine::PrefillOptions options;
    options.chunk_tokens = chunk_tokens;
    const Status status = loaded_->engine->Prefill(sequence, tokens, encode, options, logits);
    EXPECT_TRUE(status.ok()) << status.message();
    return sequence;
  }

  void Step(std::span<const engine::DecodeItem> items, std::vector<float>* logits) {
    const Status status = loaded_->engine->Decode(items, logits);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const engine::DecodeItem& item : items) {
      ASSERT_TRUE(item.sequence->EncodeDue(&loaded_->backend->pool()).ok());
    }
  }

  std::vector<int32_t> Greedy(const std::string& word, std::span<const int32_t> prompt, size_t count) {
    std::vector<float> logits;
    cache::Sequence sequence = Prefilled(word, prompt, &logits);
    std::vector<int32_t> answer;
    while (answer.size() < count) {
      answer.push_back(Likeliest(logits));
      const engine::DecodeItem item{&sequence, answer.back()};
      Step(std::span(&item, 1), &logits);
    }
    return answer;
  }

  TempDir folder_;
  std::unique_ptr<LoadedModel> loaded_;
};

}  // namespace kvant::test
