#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/engine_fixture.h"
#include "support/gguf_fixture.h"
#include "support/temp_dir.h"

namespace kvant::test {

/// A tiny model, 4 query heads over 2, with its tokenizer, and prompts of words.
class WordsFixture : public testing::Test {
 protected:
  void SetUp() override { Load({.num_q_heads = 4, .num_kv_heads = 2, .context_length = 2048}); }

  void Load(const TinyModelParams& params) {
    const std::string path = folder_.File("tiny.gguf");
    ASSERT_TRUE(WriteTinyModel(params, path).ok());
    model_ = LoadedModel::Load(path);
    ASSERT_TRUE(model_ != nullptr);
    tokenizer_ = std::move(engine::Tokenizer::Load(path, model_->model->info())).value();
  }
  std::vector<int32_t> Tokens(int words, int seed = 7) const {
    std::string text;
    for (int i = 0; i < words; ++i) {
      text += "word" + std::to_string(i * seed % 23) + " ";
    }
    return *tokenizer_->Encode(text, false);
  }

  TempDir folder_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
};

}  // namespace kvant::test
