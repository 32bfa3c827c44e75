// Sessions: kept, taken up again, damaged, and not the prompt's.
#include "kvant/engine/session.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "kvant/engine/generate.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/wire/messages.h"
#include "unit/engine/words_fixture.h"

namespace kvant::test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

constexpr const char* kWords[] = {
    "fp16",           "int8",          "int4,eq=off,sinks=0",        "int4,residual=32",
    "spectrum:b=0.4", "pnmix:3/1@50%", "pairs:2.5,v=2,g=32,sinks=4", "spectrum:b=0.3,int4=pages"};

class SessionTest : public WordsFixture {
 protected:
  void SetUp() override {
    WordsFixture::SetUp();
    prompt_ = Tokens(60);
  }
  Result<engine::GenerateReport> Generate(std::span<const int32_t> prompt, const char* word, bool session,
                                          uint32_t max_tokens = 150) {
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    options.session = session ? file() : "";
    return engine::GenerateLocal(*model_->engine, *tokenizer_, prompt, *codec::ParsePrecision(word), options, {});
  }
  std::string file() const { return folder_.File("kept.session"); }
  // The prompt, then what the session holds of the answer, then `words` more.
  std::vector<int32_t> Continued(int words) {
    cache::MemoryAccount account;
    std::vector<int32_t> tokens =
        engine::LoadSession(file(), *model_->engine, *tokenizer_, precision_, &account).value().tokens;
    const std::vector<int32_t> more = Tokens(words, 5);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }

  std::vector<int32_t> prompt_;
  codec::Precision precision_;
};

// One engine keeps its sequence; the other lets it go, and takes it up from the file.
TEST_F(SessionTest, GoesOnAsIfItHadNotBeenInterrupted) {
  for (const char* word : kWords) {
    SCOPED_TRACE(word);
    precision_ = *codec::ParsePrecision(word);
    std::remove(file().c_str());
    ASSERT_TRUE(Generate(prompt_, word, true).ok());
    cache::MemoryAccount account;
    cache::Sequence alive = model_->engine->NewSequence(precision_, &account).value();
    engine::EncodeInPlace encode(precision_, codec::PromptTail::kByPosition, &model_->backend->pool());
    std::vector<float> logits;
    ASSERT_TRUE(model_->engine->Prefill(alive, prompt_, encode, {}, &logits).ok());
    auto kept = engine::LoadSession(file(), *model_->engine, *tokenizer_, precision_, &account);
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    for (size_t i = prompt_.size(); i < kept->tokens.size(); ++i) {
      const engine::DecodeItem item{&alive, kept->tokens[i]};
      ASSERT_TRUE(model_->engine->Decode(std::span(&item, 1), &logits).ok());
      ASSERT_TRUE(alive.EncodeDue(&model_->backend->pool()).ok());
    }
    EXPECT_EQ(kept->sequence.stored_bytes(), alive.stored_bytes());
    EXPECT_EQ(kept->sequence.num_tokens(), alive.num_tokens());
    const std::vector<int32_t> more = Tokens(30, 5);
    std::vector<float> expected;
    ASSERT_TRUE(model_->engine->Prefill(alive, more, encode, {}, &expected).ok());
    engine::EncodeInPlace again(precision_, codec::PromptTail::kByPosition, &model_->backend->pool());
    ASSERT_TRUE(model_->engine->Prefill(kept->sequence, more, again, {}, &logits).ok());
    EXPECT_EQ(logits, expected);
    EXPECT_EQ(kept->sequence.stored_bytes(), alive.stored_bytes());
  }
}

TEST_F(SessionTest, APromptThatBeginsWithItIsNotComputedTwice) {
  for (const char* word : kWords) {
    SCOPED_TRACE(word);
    precision_ = *codec::ParsePrecision(word);
    std::remove(file().c_str());
    const auto first = Generate(prompt_, word, true);
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_EQ(first->cached_tokens, 0U);
    EXPECT_EQ(first->recomputed, "");
    const std::vector<int32_t> second = Continued(20);
    const auto report = Generate(second, word, true);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->cached_tokens, prompt_.size() + 149);
    EXPECT_EQ(report->recomputed, "");
    if (std::string(word) == "fp16") {
      const auto without = Generate(second, word, false);
      EXPECT_EQ(report->text, without->text) << "no cache, the same text";
    }
  }
}

TEST_F(SessionTest, ARollBackBeyondTheResidualIsRecomputedAndSaid) {
  precision_ = *codec::ParsePrecision("int8");
  ASSERT_TRUE(Generate(prompt_, "int8", true).ok());
  const auto again = Generate(prompt_, "int8", true, 20);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->cached_tokens, 0U);
  EXPECT_NE(again->recomputed.find("cannot take back 150 tokens"), std::string::npos) << again->recomputed;
  const auto fresh = Generate(prompt_, "int8", false, 20);
  EXPECT_EQ(again->text, fresh->text);
  const auto near = Generate(prompt_, "int8", true, 20);  // 20 tokens back, all at fp16 still
  EXPECT_EQ(near->cached_tokens, prompt_.size() - 1);
  EXPECT_EQ(near->recomputed, "");
  const auto other = Generate(Tokens(50, 11), "int8", true, 5);
  EXPECT_NE(other->recomputed, "");
}

TEST_F(SessionTest, WindowsAreTakenUpAgain) {
  Load({.architecture = "gemma3", .num_layers = 3, .context_length = 2048, .window = 64, .window_pattern = 2});
  for (const char* word : {"fp16", "int8", "spectrum:b=0.4", "pnmix:3/1@50%"}) {
    SCOPED_TRACE(word);
    precision_ = *codec::ParsePrecision(word);
    std::remove(file().c_str());
    ASSERT_TRUE(Generate(prompt_, word, true).ok());
    const std::vector<int32_t> second = Continued(20);
    const auto report = Generate(second, word, true);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->cached_tokens, prompt_.size() + 149);
    if (std::string(word) == "fp16") {
      EXPECT_EQ(report->text, Generate(second, word, false)->text);
    }
    const auto back = Generate(std::span(second).first(prompt_.size() + 100), word, true, 5);
    ASSERT_TRUE(back.ok());
    EXPECT_NE(back->recomputed, "") << "what the window has let go cannot be seen again";
  }
}

TEST_F(SessionTest, DamageIsNamedAndNothingIsTaken) {
  for (const char* word : {"int8", "spectrum:b=0.4", "pairs:2.0"}) {
    SCOPED_TRACE(word);
    std::remove(file().c_str());
    ASSERT_TRUE(Generate(prompt_, word, true, 10).ok());
    const std::string good = ReadFile(file());
    std::mt19937 random(3);
    for (int round = 0; round < 150; ++round) {
      std::string bad = good;
      if (round % 2 == 0) {
        bad.resize(random() % good.size());
      } else {
        bad[random() % good.size()] ^= static_cast<char>(1 << random() % 8);
      }
      WriteFile(file(), bad);
      cache::MemoryAccount account;
      const auto session =
          engine::LoadSession(file(), *model_->engine, *tokenizer_, *codec::ParsePrecision(word), &account);
      ASSERT_FALSE(session.ok()) << round;
      EXPECT_NE(session.status().message().find(file()), std::string::npos) << session.status().message();
      EXPECT_EQ(account.in_use_bytes(), 0U);
      EXPECT_FALSE(Generate(prompt_, word, true, 3).ok()) << "not silently computed anew";
      EXPECT_EQ(ReadFile(file()), bad) << "nor overwritten";
    }
    WriteFile(file(), good + "x");
    EXPECT_FALSE(Generate(prompt_, word, true, 3).ok());
  }
}

TEST_F(SessionTest, AnotherModelOrPrecisionIsNamed) {
  ASSERT_TRUE(Generate(prompt_, "int8", true, 10).ok());
  for (const auto& [word, named] : {std::pair("int4", "asked for as int4"), std::pair("int8,sinks=8", "sinks=8"),
                                    std::pair("pnmix:3/1@50%", "asked for as pnmix"),
                                    std::pair("spectrum:b=0.5", "kept as int8, asked for as spectrum:b=0.5")}) {
    const auto report = Generate(prompt_, word, true, 3);
    EXPECT_EQ(report.status().code(), StatusCode::kMismatch);
    EXPECT_NE(report.status().message().find(named), std::string::npos) << report.status().message();
  }
  std::remove(file().c_str());
  ASSERT_TRUE(Generate(prompt_, "pnmix:3/1@50%", true, 10).ok());
  EXPECT_EQ(Generate(prompt_, "pnmix:3/1@50%,v=4", true, 3).status().code(), StatusCode::kMismatch);
  EXPECT_EQ(Generate(prompt_, "pnmix:3/1@40%", true, 3).status().code(), StatusCode::kMismatch);
  EXPECT_EQ(Generate(prompt_, "progressive:b=0.5", true, 3).status().code(), StatusCode::kPrecisionUnsupported);
  Load({.num_layers = 3, .num_q_heads = 4, .num_kv_heads = 2, .context_length = 2048});
  EXPECT_EQ(Generate(prompt_, "pnmix:3/1@50%", true, 3).status().code(), StatusCode::kMismatch);
}

TEST_F(SessionTest, LayersThatAreNotOfItsWordAreRefused) {
  for (const auto& [kept, said] : {std::pair("pairs:2.0", "int8"), std::pair("int8", "pairs:2.0")}) {
    SCOPED_TRACE(kept);
    std::remove(file().c_str());
    ASSERT_TRUE(Generate(prompt_, kept, true, 10).ok());
    const auto word = [](const char* text) {
      const Buffer frame = wire::EncodeSession(1, codec::PrecisionWord(*codec::ParsePrecision(text))).value();
      return std::string(reinterpret_cast<const char*>(frame.bytes().data()), frame.size());
    };
    std::string bytes = ReadFile(file());
    ASSERT_EQ(bytes.rfind(word(kept), 0), 0U);
    WriteFile(file(), bytes.replace(0, word(kept).size(), word(said)));
    EXPECT_EQ(Generate(prompt_, said, true, 3).status().code(), StatusCode::kMismatch);
  }
}

TEST_F(SessionTest, WhereItCannotBeWrittenIsNamed) {
  std::filesystem::create_directory(file());
  EXPECT_EQ(Generate(prompt_, "int8", true, 3).status().code(), StatusCode::kIoError);
  engine::GenerateOptions options;
  options.max_tokens = 3;
  options.session = folder_.File("no/such/folder");
  const auto report =
      engine::GenerateLocal(*model_->engine, *tokenizer_, prompt_, *codec::ParsePrecision("int8"), options, {});
  EXPECT_EQ(report.status().code(), StatusCode::kIoError);
  EXPECT_NE(report.status().message().find("no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace kvant::test
