// Maps of the model: calibrated, kept, refused where they do not belong, and what prompts share by them.
#include "kvant/engine/profile.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "kvant/engine/generate.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/engine/session.h"
#include "unit/engine/words_fixture.h"

namespace kvant::test {
namespace {

constexpr const char* kWords[] = {"pairs:2.0,map=model", "pnmix:3/1@50%,g=32,map=model,sinks=4", "int4,eq=model"};

class ProfileTest : public WordsFixture {
 protected:
  Result<engine::Profile> Calibrated(const char* word, int seed = 7) {
    return engine::Calibrate(*model_->engine, *codec::ParsePrecision(word), Tokens(80, seed), {});
  }
  void UseProfile(const char* word) {
    auto profile = Calibrated(word);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    model_->engine->UseProfile(std::make_shared<const engine::Profile>(std::move(*profile)));
  }
  Result<engine::GenerateReport> Generate(std::span<const int32_t> prompt, const char* word,
                                          const engine::GenerateOptions& options) {
    return engine::GenerateLocal(*model_->engine, *tokenizer_, prompt, *codec::ParsePrecision(word), options, {});
  }
  cache::Sequence Computed(std::span<const int32_t> prompt, const char* word, cache::MemoryAccount* account) {
    const codec::Precision kv = *codec::ParsePrecision(word);
    cache::Sequence sequence = model_->engine->NewSequence(kv, account).value();
    engine::EncodeInPlace encode(kv, codec::PromptTail::kByPosition, &model_->backend->pool());
    std::vector<float> logits;
    EXPECT_TRUE(model_->engine->Prefill(sequence, prompt, encode, {}, &logits).ok());
    return sequence;
  }
  // The layers of a prompt as they lie.
  std::vector<std::vector<std::byte>> BlocksOf(std::span<const int32_t> prompt, const char* word) {
    cache::MemoryAccount account;
    const cache::Sequence sequence = Computed(prompt, word, &account);
    std::vector<std::vector<std::byte>> blocks;
    for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
      blocks.emplace_back(sequence.layer(layer).block_layout().total_bytes());
      sequence.layer(layer).ExportBlock(blocks.back(), nullptr);
    }
    return blocks;
  }
  // Locally and disaggregated. Returns what the caches took.
  std::pair<uint64_t, uint64_t> ExpectSameText(std::span<const int32_t> prompt, const char* word, uint32_t max_tokens,
                                               engine::Engine& decode) {
    const auto local = Generate(prompt, word, Options(max_tokens));
    const auto remote = engine::GenerateDisaggregated(*model_->engine, decode, *tokenizer_, prompt,
                                                      {*codec::ParsePrecision(word)}, Options(max_tokens), {});
    EXPECT_TRUE(local.ok()) << local.status().message();
    EXPECT_TRUE(remote.ok()) << remote.status().message();
    if (!local.ok() || !remote.ok()) {
      return {1, 0};  // said above
    }
    EXPECT_EQ(local->text, remote->text) << word;
    return {local->kv_bytes, remote->kv_bytes};
  }
  std::string file() const { return folder_.File("model.profile"); }

  static engine::GenerateOptions Options(uint32_t max_tokens) {
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    return options;
  }
};

TEST_F(ProfileTest, ComesBackFromItsFile) {
  for (const char* word : kWords) {
    const auto profile = Calibrated(word);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    ASSERT_EQ(profile->layers.size(), model_->model->params().num_layers);
    ASSERT_TRUE(engine::SaveProfile(file(), *model_->engine, *tokenizer_, *profile).ok());
    const auto loaded = engine::LoadProfile(file(), *model_->engine, *tokenizer_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->precision, profile->precision);
    EXPECT_EQ(loaded->layers, profile->layers);
    EXPECT_EQ(loaded->num_tokens, profile->num_tokens);
    EXPECT_EQ(loaded->Id(), profile->Id());
    EXPECT_NE(loaded->Id(), Calibrated(word, 5)->Id()) << "another text, other maps";
  }
}

TEST_F(ProfileTest, MapsAreThoseThatAPromptOfTheTextWouldHave) {
  const std::vector<int32_t> text = Tokens(80, 7);
  for (const auto& [of_model, of_prompt] : {std::pair("pairs:2.0,map=model", "pairs:2.0"), {"int8,eq=model", "int8"}}) {
    UseProfile(of_model);
    EXPECT_EQ(BlocksOf(text, of_model), BlocksOf(text, of_prompt)) << of_model;
  }
}

TEST_F(ProfileTest, WithoutOneTheWordIsRefused) {
  const auto refused = Generate(Tokens(60, 7), "pairs:2.0,map=model", Options(4));
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_NE(refused.status().message().find("profile"), std::string::npos) << refused.status().message();
  UseProfile("pairs:2.0,map=model");
  EXPECT_TRUE(Generate(Tokens(60, 7), "pairs:2.0,map=model", Options(4)).ok());
  EXPECT_EQ(Generate(Tokens(60, 7), "pairs:2.0,v=2,map=model", Options(4)).status().code(), StatusCode::kNotFound);
}

TEST_F(ProfileTest, ATextTooShortOrAPrecisionWithoutMapsIsRefused) {
  const auto is_short = engine::Calibrate(*model_->engine, *codec::ParsePrecision("pairs:2.0,map=model"),
                                          std::vector<int32_t>(159, 5), {});
  EXPECT_EQ(is_short.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(is_short.status().message().find("need 160"), std::string::npos) << is_short.status().message();
  for (const char* word : {"fp16", "int8", "pairs:2.0", "spectrum:b=0.5"}) {
    EXPECT_EQ(Calibrated(word).status().code(), StatusCode::kInvalidArgument) << word;
  }
}

TEST_F(ProfileTest, DamagedFilesAreRefused) {
  ASSERT_TRUE(engine::SaveProfile(file(), *model_->engine, *tokenizer_, *Calibrated(kWords[0])).ok());
  std::ifstream stream(file(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(stream), {}};
  const auto load = [&](const std::string& bytes) {
    std::ofstream(file(), std::ios::binary) << bytes;
    return engine::LoadProfile(file(), *model_->engine, *tokenizer_).status();
  };
  ASSERT_TRUE(load(whole).ok());
  for (size_t at = 0; at < whole.size(); at += 3) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    const Status status = load(flipped);
    EXPECT_FALSE(status.ok()) << at;
    EXPECT_NE(status.message().find(file()), std::string::npos) << status.message();
    EXPECT_FALSE(load(whole.substr(0, at)).ok()) << at;
  }
  EXPECT_EQ(load(whole + "x").code(), StatusCode::kCorruption);
  EXPECT_EQ(load("").code(), StatusCode::kOutOfRange);
  EXPECT_EQ(engine::LoadProfile(folder_.File("none"), *model_->engine, *tokenizer_).status().code(),
            StatusCode::kNotFound);
}

TEST_F(ProfileTest, AnotherModelsIsRefusedByName) {
  ASSERT_TRUE(engine::SaveProfile(file(), *model_->engine, *tokenizer_, *Calibrated(kWords[0])).ok());
  Load({.num_q_heads = 4, .num_kv_heads = 2, .context_length = 2048, .seed = 2});
  const Status status = engine::LoadProfile(file(), *model_->engine, *tokenizer_).status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("model_fingerprint"), std::string::npos) << status.message();
}

TEST_F(ProfileTest, ASessionOfOtherMapsIsRefused) {
  UseProfile("pairs:2.0,map=model");
  engine::GenerateOptions options = Options(8);
  options.session = folder_.File("kept.session");
  const std::vector<int32_t> prompt = Tokens(60, 7);
  ASSERT_TRUE(Generate(prompt, "pairs:2.0,map=model", options).ok());
  EXPECT_TRUE(Generate(prompt, "pairs:2.0,map=model", options).ok());
  model_->engine->UseProfile(std::make_shared<const engine::Profile>(*Calibrated("pairs:2.0,map=model", 5)));
  const Status status = Generate(prompt, "pairs:2.0,map=model", options).status();
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("other maps"), std::string::npos) << status.message();
}

TEST_F(ProfileTest, TheSameTextLocallyAndDisaggregated) {
  const auto decode = LoadedModel::Load(model_->model->path());
  const std::vector<int32_t> prompt = Tokens(60, 7);
  for (const char* word : kWords) {
    UseProfile(word);
    const codec::Precision kv = *codec::ParsePrecision(word);
    // What waits at fp16 locally is encoded for the way only with tiers: pages are sent whole in both.
    const std::span<const int32_t> whole =
        kv.pairs ? std::span(prompt) : std::span(prompt).first(kv.num_sinks + kv.residual);
    ExpectSameText(whole, word, 150, *decode->engine);
  }
}

// Where nothing is encoded yet the maps are there all the same: sent, kept, and used for what comes.
TEST_F(ProfileTest, APromptTooShortToEncodeHasTheModelsMaps) {
  const auto decode = LoadedModel::Load(model_->model->path());
  std::vector<int32_t> prompt = Tokens(60, 7);
  prompt.resize(28);
  for (const char* word : {"int4,eq=model", "int8,eq=model,sinks=0", "spectrum:b=0.5,eq=model",
                           "spectrum:b=0.3,int4=pages,eq=model", "pairs:2.0,map=model"}) {
    UseProfile(word);
    const auto [local_bytes, remote_bytes] = ExpectSameText(prompt, word, 350, *decode->engine);
    EXPECT_EQ(local_bytes, remote_bytes) << word;

    engine::GenerateOptions options = Options(12);
    options.session = folder_.File("short.session");
    std::remove(options.session.c_str());
    ASSERT_TRUE(Generate(prompt, word, options).ok()) << word;
    const auto again = Generate(prompt, word, options);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->cached_tokens, prompt.size() - 1) << word;
  }
}

// What later tokens are has no say: the pages that two prompts have in common are the same bytes, computed alone.
TEST_F(ProfileTest, PromptsThatBeginAlikeHaveTheSamePages) {
  std::vector<int32_t> a = Tokens(60, 7);
  a.resize(200);
  std::vector<int32_t> b = a;
  const std::vector<int32_t> rest = Tokens(60, 5);
  a.insert(a.end(), rest.begin(), rest.begin() + 60);
  b.insert(b.end(), rest.begin() + 60, rest.begin() + 120);
  for (const char* word : {"pairs:2.0,map=model,sinks=4", "pnmix:3/1@50%,map=model,sinks=4"}) {
    UseProfile(word);
    const uint32_t pages_tokens = 4 + 128;
    const auto cut = [&](std::span<const int32_t> prompt) {
      cache::MemoryAccount account;
      cache::Sequence sequence = Computed(prompt, word, &account);
      EXPECT_EQ(sequence.ReusableTokens(200), pages_tokens);
      sequence.KeepFirst(pages_tokens);
      std::vector<std::byte> block(sequence.layer(1).block_layout().total_bytes());
      sequence.layer(1).ExportBlock(block, nullptr);
      return block;
    };
    EXPECT_EQ(cut(a), cut(b)) << word;
  }
}

// R25: a kept prompt that is shorter, longer, equal or different. At fp16 the answer is as if nothing had been kept.
TEST_F(ProfileTest, PromptsShareWhatTheyBeginWith) {
  const std::vector<int32_t> kept = Tokens(100, 7);
  ASSERT_GT(kept.size(), 450U);
  for (const char* word : {"fp16", "int8,eq=off", "int4,eq=model", "pairs:2.0,map=model"}) {
    if (codec::ParsePrecision(word)->maps_of_model) {
      UseProfile(word);
    }
    for (const size_t common : {size_t{0}, size_t{1}, size_t{200}, kept.size() - 1, kept.size()}) {
      SCOPED_TRACE(std::string(word) + " " + std::to_string(common));
      cache::MemoryAccount account;
      cache::PrefixCache prefixes(&account);
      engine::GenerateOptions options = Options(8);
      options.prefixes = &prefixes;
      const auto first = Generate(kept, word, options);
      ASSERT_TRUE(first.ok()) << first.status().message();
      EXPECT_EQ(first->cached_tokens, 0U);
      std::vector<int32_t> prompt(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(common));
      const std::vector<int32_t> rest = Tokens(30, 5);
      if (common < kept.size()) {
        prompt.push_back(kept[common] == 5 ? 6 : 5);  // they part here
        prompt.insert(prompt.end(), rest.begin(), rest.end());
      }
      const uint64_t in_use = account.in_use_bytes();
      const auto shared = Generate(prompt, word, options);
      const auto alone = Generate(prompt, word, Options(8));
      ASSERT_TRUE(shared.ok()) << shared.status().message();
      EXPECT_LE(shared->cached_tokens, common);
      EXPECT_LT(shared->cached_tokens, prompt.size());
      if (common >= 200) {
        EXPECT_GT(shared->cached_tokens + 129, std::min(common, prompt.size() - 1));
        EXPECT_LT(account.in_use_bytes(), 2 * in_use);
      }
      EXPECT_EQ(shared->completion_tokens, 8U);
      if (codec::ParsePrecision(word)->is_exact()) {
        EXPECT_EQ(shared->text, alone->text);
        EXPECT_EQ(shared->cached_tokens, std::min(common, prompt.size() - 1));
      }
      EXPECT_EQ(Generate(prompt, word, options)->text, Generate(prompt, word, options)->text);
    }
  }
}

TEST_F(ProfileTest, MapsOfAPromptAreNotShared) {
  cache::MemoryAccount account;
  cache::PrefixCache prefixes(&account);
  engine::GenerateOptions options = Options(8);
  options.prefixes = &prefixes;
  const std::vector<int32_t> prompt = Tokens(100, 7);
  for (const char* word : {"int8", "pairs:2.0", "spectrum:b=0.5"}) {
    ASSERT_TRUE(Generate(prompt, word, options).ok());
    EXPECT_EQ(Generate(prompt, word, options)->cached_tokens, 0U) << word;
  }
  options.session = folder_.File("both.session");
  EXPECT_EQ(Generate(prompt, "int8", options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::test
