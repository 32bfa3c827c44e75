// Second turns: prompts that are not what a session holds, files that are no session, contexts that fill up.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "kvant/engine/session.h"
#include "unit/engine/decode_fixture.h"

namespace kvant::test {
namespace {

// What can be kept: the progressive code is not.
constexpr const char* kKept[] = {"fp16",
                                 "int8",
                                 "int4",
                                 "spectrum:b=0.4",
                                 "spectrum:b=0.3,int4=pages",
                                 "pnmix:3/1@50%,v=2",
                                 "pairs:2.0,v=2",
                                 "pairs:2.0,v=3",
                                 "pairs:2.0,v=4",
                                 "pairs:2.0,v=8"};

constexpr uint32_t kFirstAnswer = 3;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class SessionTurnsTest : public DecodeFixture {
 protected:
  void SetUp() override {
    DecodeFixture::SetUp();
    tokenizer_ = std::move(engine::Tokenizer::Load(path(), loaded_->model->info())).value();
  }
  std::string file() const { return folder_.File("kept.session"); }

  struct Limits {
    bool session = true;
    uint32_t context = 0;
    uint64_t memory_bytes = UINT64_MAX;
  };
  Result<engine::GenerateReport> Generate(const std::string& word, std::span<const int32_t> prompt, uint32_t count,
                                          const Limits& limits) {
    engine::GenerateOptions options;
    options.max_tokens = count;
    options.ignore_eos = true;
    options.context = limits.context;
    options.memory_limit_bytes = limits.memory_bytes;
    options.session = limits.session ? file() : "";
    return engine::GenerateLocal(*loaded_->engine, *tokenizer_, prompt, *codec::ParsePrecision(word), options, {});
  }
  engine::GenerateReport Turn(const std::string& word, std::span<const int32_t> prompt, uint32_t count,
                              uint32_t context = 0) {
    auto report = Generate(word, prompt, count, {.context = context});
    EXPECT_TRUE(report.ok()) << word << ": " << report.status().message();
    return report.ok() ? *report : engine::GenerateReport{};
  }
  std::string Fresh(const std::string& word, std::span<const int32_t> prompt, uint32_t count, uint32_t context = 0) {
    return Generate(word, prompt, count, {.session = false, .context = context}).value().text;
  }
  std::string TextOf(std::span<const int32_t> tokens) const {
    engine::Utf8Stream stream;
    std::string text;
    for (const int32_t token : tokens) {
      text += stream.Push(tokenizer_->Piece(token));
    }
    return text + stream.Finish();
  }

  // The sequence that was never let go: the first turn, so many of its tokens taken back, the rest of the second.
  struct Alive {
    cache::Sequence sequence;
    std::vector<int32_t> tokens;
  };
  Alive FirstTurn(const std::string& word, std::span<const int32_t> prompt, uint32_t count) {
    std::vector<float> logits;
    Alive alive{Prefilled(word, prompt, &logits), {prompt.begin(), prompt.end()}};
    for (uint32_t i = 1; i < count; ++i) {
      alive.tokens.push_back(Likeliest(logits));
      const engine::DecodeItem item{&alive.sequence, alive.tokens.back()};
      Step(std::span(&item, 1), &logits);
    }
    return alive;
  }
  std::string SecondTurn(Alive& alive, std::span<const int32_t> prompt, uint32_t kept, uint32_t count) {
    EXPECT_TRUE(alive.sequence.ShrinkExact(alive.sequence.num_tokens() - kept).ok());
    engine::EncodeInPlace encode(alive.sequence.precision(), codec::PromptTail::kByPosition, &loaded_->backend->pool());
    std::vector<float> logits;
    EXPECT_TRUE(loaded_->engine->Prefill(alive.sequence, prompt.subspan(kept), encode, {}, &logits).ok());
    std::vector<int32_t> answer = {Likeliest(logits)};
    while (answer.size() < count) {
      const engine::DecodeItem item{&alive.sequence, answer.back()};
      Step(std::span(&item, 1), &logits);
      answer.push_back(Likeliest(logits));
    }
    return TextOf(answer);
  }

  // A second turn by a file is the one of the sequence that was kept alive, and where nothing is kept, or all of it
  // exactly, the one without a session.
  void ExpectAsIfNeverInterrupted(const std::string& word, const std::string& kept, std::span<const int32_t> first,
                                  std::span<const int32_t> second, uint32_t count) {
    WriteFile(file(), kept);
    const engine::GenerateReport report = Turn(word, second, count);
    if (report.cached_tokens > 0) {
      Alive alive = FirstTurn(word, first, kFirstAnswer);
      EXPECT_EQ(report.text, SecondTurn(alive, second, report.cached_tokens, count));
    } else {
      EXPECT_NE(report.recomputed, "");
    }
    if (report.cached_tokens == 0 || word == "fp16") {
      EXPECT_EQ(report.text, Fresh(word, second, count));
    }
    if (word == "fp16") {
      const auto common = std::mismatch(second.begin(), second.end(), first.begin(), first.end()).first;
      EXPECT_EQ(report.cached_tokens, std::min<ptrdiff_t>(common - second.begin(), std::ssize(second) - 1));
    }
  }

  std::unique_ptr<engine::Tokenizer> tokenizer_;
};

std::vector<int32_t> ChangedAt(std::vector<int32_t> tokens, size_t at) {
  tokens[at] = (tokens[at] + 1) % 256;
  return tokens;
}

// Of a long session most is encoded; a short one is all at fp16 still, and can be taken back to any token.
TEST_F(SessionTurnsTest, APromptUnlikeTheOneKeptIsAnsweredAsIfNothingHadBeenInterrupted) {
  for (const char* word : kKept) {
    for (const size_t length : {300U, 60U}) {
      const std::vector<int32_t> first = SomeTokens(length, 9);
      const uint32_t count = length == 60 ? 110 : 20;  // beyond the first page
      std::remove(file().c_str());
      Turn(word, first, kFirstAnswer);
      const std::string kept = ReadFile(file());
      const auto expect = [&](const std::vector<int32_t>& second, const char* what) {
        SCOPED_TRACE(std::string(word) + ", " + std::to_string(length) + " tokens, " + what);
        ExpectAsIfNeverInterrupted(word, kept, first, second, count);
      };
      expect({first.begin(), first.begin() + static_cast<ptrdiff_t>(length / 3)}, "a third");
      expect({first.begin(), first.end() - 1}, "all but the last");
      expect(first, "the same");
      expect(ChangedAt(first, 0), "another first token");
      expect(ChangedAt(first, 1), "another second token");
      expect(ChangedAt(first, length - 1), "another last token");
      std::vector<int32_t> longer = first;
      longer.insert(longer.end(), 40, 65);
      expect(longer, "more");
    }
  }
}

TEST_F(SessionTurnsTest, AFullContextEndsAnAnswerByLengthAndTheNextTurnGoesOn) {
  constexpr uint32_t kContext = 256;
  for (const char* word : kEveryKind) {
    const auto full = Generate(word, SomeTokens(200, 9), 400, {.session = false, .context = kContext});
    ASSERT_TRUE(full.ok()) << word << ": " << full.status().message();
    EXPECT_EQ(full->completion_tokens, kContext - 200) << word;
    EXPECT_EQ(full->finish_reason, engine::FinishReason::kLength);
  }
  for (const char* word : kKept) {
    SCOPED_TRACE(word);
    std::remove(file().c_str());
    const std::vector<int32_t> first = SomeTokens(150, 9);
    Turn(word, first, 20, kContext);
    Alive alive = FirstTurn(word, first, 20);
    std::vector<int32_t> second = alive.tokens;
    second.insert(second.end(), 30, 65);
    const engine::GenerateReport report = Turn(word, second, 400, kContext);
    EXPECT_EQ(report.cached_tokens, alive.tokens.size());
    EXPECT_EQ(report.completion_tokens, kContext - second.size());
    EXPECT_EQ(report.finish_reason, engine::FinishReason::kLength);
    EXPECT_EQ(report.text, SecondTurn(alive, second, report.cached_tokens, report.completion_tokens));
    const std::string kept = ReadFile(file());
    const auto third = Generate(word, SomeTokens(kContext, 9), 5, {.context = kContext});
    EXPECT_EQ(third.status().code(), StatusCode::kCapacityExceeded);
    EXPECT_NE(third.status().message().find("256 tokens and the context holds 256"), std::string::npos);
    EXPECT_EQ(ReadFile(file()), kept);
    EXPECT_EQ(Turn(word, second, 400, kContext).completion_tokens, kContext - second.size());
  }
}

// 20 flips and 20 cuts over the file: the engine answers the next request as one that has never seen them.
TEST_F(SessionTurnsTest, ADamagedFileLeavesEveryOtherAnswerAsItWas) {
  constexpr size_t kPlaces = 20;
  const std::vector<int32_t> prompt = SomeTokens(200, 9);
  for (const char* word : kKept) {
    std::remove(file().c_str());
    Turn(word, prompt, 5);
    const std::string good = ReadFile(file());
    const std::string control = Fresh(word, SomeTokens(140, 4), 8);
    for (size_t place = 0; place < 2 * kPlaces; ++place) {
      std::string bad = good;
      const size_t at = good.size() * (place / 2) / kPlaces;
      if (place % 2 == 0) {
        bad[at] ^= 0x10;
      } else {
        bad.resize(at);
      }
      WriteFile(file(), bad);
      EXPECT_FALSE(Generate(word, prompt, 5, {}).ok()) << word << " at " << at;
      EXPECT_EQ(ReadFile(file()), bad);
      ASSERT_EQ(Fresh(word, SomeTokens(140, 4), 8), control) << word << " at " << at;
    }
    WriteFile(file(), good);
    const engine::GenerateReport again = Turn(word, prompt, 5);
    EXPECT_EQ(again.cached_tokens, prompt.size() - 1) << again.recomputed;
  }
}

TEST_F(SessionTurnsTest, WhatIsTooLargeIsRefusedWithBothSizesAndStays) {
  const std::vector<int32_t> prompt = SomeTokens(500, 9);
  for (const char* word : kKept) {
    std::remove(file().c_str());
    Turn(word, prompt, 5);
    const std::string kept = ReadFile(file());
    const auto small = Generate(word, prompt, 5, {.memory_bytes = 20'000});
    EXPECT_EQ(small.status().code(), StatusCode::kCapacityExceeded) << word;
    EXPECT_NE(small.status().message().find("20000"), std::string::npos) << small.status().message();
    const auto short_context = Generate(word, prompt, 5, {.context = 300});
    EXPECT_EQ(short_context.status().code(), StatusCode::kCapacityExceeded) << word;
    EXPECT_NE(short_context.status().message().find("500 tokens and the context holds 300"), std::string::npos);
    EXPECT_EQ(ReadFile(file()), kept) << word;
    const std::vector<int32_t> little(prompt.begin(), prompt.begin() + 50);
    const engine::GenerateReport report = Turn(word, little, 5, 300);
    EXPECT_EQ(report.text, Fresh(word, little, 5)) << word << ": of a larger session";
  }
}

TEST_F(SessionTurnsTest, TheProgressiveCodeIsRefusedBeforeAnythingIsComputed) {
  engine::GenerateOptions options;
  options.session = file();
  bool computed = false;
  engine::GenerateCallbacks callbacks;
  callbacks.prefill = [&](uint32_t, uint32_t) { computed = true; };
  const auto report = engine::GenerateLocal(*loaded_->engine, *tokenizer_, SomeTokens(20, 1),
                                            *codec::ParsePrecision("progressive:b=0.4"), options, callbacks);
  EXPECT_EQ(report.status().code(), StatusCode::kPrecisionUnsupported);
  EXPECT_NE(report.status().message().find("progressive:b=0.4"), std::string::npos) << report.status().message();
  EXPECT_FALSE(computed);
}

}  // namespace
}  // namespace kvant::test
