// Generation as users meet it: local and disaggregated, limits, seeds, text.
#include "kvant/engine/generate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "kvant/engine/remote.h"
#include "kvant/transport/loopback.h"
#include "kvant/transport/tap.h"
#include "kvant/wire/upgrade.h"
#include "support/engine_fixture.h"
#include "support/gguf_fixture.h"
#include "support/temp_dir.h"

namespace kvant::test {
namespace {

class GenerateTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = folder_.File("tiny.gguf");
    ASSERT_TRUE(WriteTinyModel({.num_q_heads = 4, .num_kv_heads = 2, .context_length = 1024}, path).ok());
    prefill_ = LoadedModel::Load(path);
    decode_ = LoadedModel::Load(path);
    ASSERT_TRUE(prefill_ != nullptr && decode_ != nullptr);
    auto tokenizer = engine::Tokenizer::Load(path, decode_->model->info());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(tokenizer).value();
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "word" + std::to_string(i * 7 % 23) + " ";
    }
    prompt_ = *tokenizer_->Encode(text, false);
    ASSERT_GT(prompt_.size(), 200U);
  }

  Result<engine::GenerateReport> Local(const char* word, const engine::GenerateOptions& options) {
    return engine::GenerateLocal(*decode_->engine, *tokenizer_, prompt_, *codec::ParsePrecision(word), options, {});
  }
  Result<engine::GenerateReport> Disaggregated(const char* word, const engine::GenerateOptions& options) {
    return engine::GenerateDisaggregated(*prefill_->engine, *decode_->engine, *tokenizer_, prompt_,
                                         {*codec::ParsePrecision(word)}, options, {});
  }

  TempDir folder_;
  std::unique_ptr<LoadedModel> prefill_;
  std::unique_ptr<LoadedModel> decode_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::vector<int32_t> prompt_;
};

TEST_F(GenerateTest, SameTextLocallyAndDisaggregatedAtFp16) {
  for (const float temperature : {0.0F, 0.9F}) {
    engine::GenerateOptions options;
    options.max_tokens = 150;
    options.ignore_eos = true;
    options.sampling.temperature = temperature;
    options.sampling.seed = 11;
    options.sampling.repeat_penalty = 1.1F;
    const auto local = Local("fp16", options);
    const auto remote = Disaggregated("fp16", options);
    ASSERT_TRUE(local.ok()) << local.status().message();
    ASSERT_TRUE(remote.ok()) << remote.status().message();
    EXPECT_EQ(local->text, remote->text);
    EXPECT_EQ(local->completion_tokens, remote->completion_tokens);
  }
}

TEST_F(GenerateTest, ReportsWhatWasSentAndHeld) {
  engine::GenerateOptions options;
  options.max_tokens = 4;
  options.ignore_eos = true;
  for (const char* word : {"fp16", "int8", "int4", "int8,eq=off,sinks=0", "int4,eq=off,sinks=0"}) {
    const auto report = Disaggregated(word, options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    const double share = static_cast<double>(report->wire_bytes) / static_cast<double>(report->wire_bytes_fp16);
    const double payload = codec::CodeBits(codec::ParsePrecision(word)->codec) / 16.0;
    EXPECT_GT(share, payload) << word;
    EXPECT_LT(share, payload + 0.13) << word;  // scales of 32 channels are 0.06, then sinks, maps and headers
    EXPECT_EQ(report->prompt_tokens, prompt_.size());
    const uint32_t exact =
        codec::ParsePrecision(word)->is_exact() ? report->prompt_tokens : codec::ParsePrecision(word)->num_sinks;
    EXPECT_EQ(report->wire_tokens_exact, exact) << word;
    EXPECT_EQ(report->wire_tokens_encoded, report->prompt_tokens - exact) << word;
    EXPECT_NEAR(report->tiers.fp16 + report->tiers.int8 + report->tiers.int4, static_cast<double>(prompt_.size()) + 3,
                1e-6);
  }
}

TEST_F(GenerateTest, APromptTooShortForAMapIsSentAtFp16AndTheReportSaysSo) {
  engine::GenerateOptions options;
  options.max_tokens = 1;
  for (const auto& [num_tokens, encoded] : {std::pair(4U + 127U, 0U), std::pair(4U + 128U, 128U)}) {
    prompt_.resize(num_tokens);
    const auto report = Disaggregated("int4", options);
    prompt_ = *tokenizer_->Encode(std::string(400, 'a'), false);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->wire_tokens_encoded, encoded);
    EXPECT_EQ(report->wire_tokens_exact, num_tokens - encoded);
  }
}

// What is compared with fp16 is what the tokens take; pages have room for more.
TEST_F(GenerateTest, BytesInUseAreNeverMoreThanFp16ForAShortPrompt) {
  engine::GenerateOptions options;
  options.max_tokens = 2;
  options.ignore_eos = true;
  prompt_.resize(10);
  const auto report = Local("int8", options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->kv_bytes, report->kv_bytes_fp16);  // sinks and residual alone
  EXPECT_GT(report->kv_bytes_allocated, report->kv_bytes_fp16);
}

TEST_F(GenerateTest, LimitsAreKept) {
  for (const uint32_t max_tokens : {1U, 2U, 3U}) {
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    const auto local = Local("int8", options);
    const auto remote = Disaggregated("int8", options);
    ASSERT_TRUE(local.ok() && remote.ok());
    EXPECT_EQ(local->completion_tokens, max_tokens);
    EXPECT_EQ(local->tpot_ms.has_value(), max_tokens > 1) << "a mean of nothing";
    EXPECT_EQ(remote->completion_tokens, max_tokens);
    EXPECT_EQ(local->finish_reason, engine::FinishReason::kLength);
  }
}

TEST_F(GenerateTest, ContextEndsTheAnswerOrRefusesThePrompt) {
  engine::GenerateOptions options;
  options.ignore_eos = true;
  options.context = static_cast<uint32_t>(prompt_.size()) + 5;
  const auto cut = Local("int8", options);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_EQ(cut->completion_tokens, 5U);
  options.context = static_cast<uint32_t>(prompt_.size());
  for (const auto& refused : {Local("int8", options), Disaggregated("int8", options)}) {
    EXPECT_EQ(refused.status().code(), StatusCode::kCapacityExceeded);
    EXPECT_NE(refused.status().message().find(std::to_string(prompt_.size())), std::string::npos);
  }
  prompt_.clear();
  EXPECT_EQ(Local("int8", options).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(GenerateTest, OtherWeightsAreRefusedByName) {
  const std::string path = folder_.File("other.gguf");
  ASSERT_TRUE(WriteTinyModel({.num_q_heads = 4, .num_kv_heads = 2, .context_length = 1024, .seed = 2}, path).ok());
  prefill_ = LoadedModel::Load(path);
  ASSERT_NE(prefill_, nullptr);
  const auto report = Disaggregated("int8", {});
  EXPECT_EQ(report.status().code(), StatusCode::kMismatch);
  EXPECT_NE(report.status().message().find("model_fingerprint"), std::string::npos) << report.status().message();
}

TEST_F(GenerateTest, SeedsDecideSampledText) {
  engine::GenerateOptions options;
  options.max_tokens = 60;
  options.ignore_eos = true;
  options.sampling.temperature = 1.5F;
  options.sampling.seed = 1;
  const std::string first = Local("int8", options)->text;
  EXPECT_EQ(Local("int8", options)->text, first);
  options.sampling.seed = 2;
  EXPECT_NE(Local("int8", options)->text, first);
}

TEST_F(GenerateTest, GrammarIsObeyed) {
  engine::GenerateOptions options;
  options.max_tokens = 20;
  options.sampling.grammar = "root ::= (\"ab\" | \"cd\")+";
  options.ignore_eos = true;
  for (const auto& report : {Local("int8", options), Disaggregated("int8", options)}) {
    ASSERT_TRUE(report.ok()) << report.status().message();
    ASSERT_GE(report->text.size(), 10U);
    for (size_t i = 0; i + 1 < report->text.size(); i += 2) {
      const std::string pair = report->text.substr(i, 2);
      EXPECT_TRUE(pair == "ab" || pair == "cd") << report->text;
    }
  }
}

TEST_F(GenerateTest, AGrammarErrorIsReturnedWithTheParsersWordsAndNotPrinted) {
  const std::map<std::string, std::string> cases = {{"root ::= (", "expecting ')' at"},
                                                    {"root ::= [a\n\nmore ::= \"b\"", "the grammar does not parse"},
                                                    {"# a comment\n\nroot ::= other \"x\"", "rule other is used"},
                                                    {"root ::= root \"x\"", "left recursion"},
                                                    {"other ::= \"x\"", "'root'"},
                                                    {"# a comment", "grammar"}};
  for (const auto& [grammar, words] : cases) {
    engine::GenerateOptions options;
    options.sampling.grammar = grammar;
    testing::internal::CaptureStderr();
    const Status status = Local("int8", options).status();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << grammar;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << grammar;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
  engine::GenerateOptions options;
  options.sampling.grammar = "\n# first\n\nroot ::= (\"a\" | b)* # and\nb ::= \"b\"\r\n";
  EXPECT_TRUE(Local("int8", options).ok());
}

// Pages are sent as they lie, with their maps: both paths hold the same bytes.
TEST_F(GenerateTest, TheSameTextLocallyAndDisaggregatedFromPairPages) {
  engine::GenerateOptions options;
  options.max_tokens = 300;
  options.ignore_eos = true;
  for (const char* word : {"pnmix:3/1@50%", "pairs:2.0", "pairs:2.5,v=2,g=32,sinks=4"}) {
    const auto local = Local(word, options);
    const auto remote = Disaggregated(word, options);
    ASSERT_TRUE(local.ok()) << local.status().message();
    ASSERT_TRUE(remote.ok()) << remote.status().message();
    EXPECT_EQ(local->text, remote->text) << word;
    EXPECT_EQ(local->kv_bytes, remote->kv_bytes) << word;
    EXPECT_LT(remote->wire_bytes, remote->wire_bytes_fp16) << word;
    EXPECT_GT(remote->wire_tokens_encoded, 100U) << word;
  }
}

// Counts the upgrades that one end has posted.
class UpgradesCounted : public transport::TapEndpoint {
 public:
  UpgradesCounted(transport::Endpoint* inner, std::atomic<int>* posted)
      : TapEndpoint(inner, [](std::span<const std::byte>) { return OkStatus(); }), posted_(posted) {}

  Result<transport::OperationId> Post(Buffer&& message, transport::Deadline deadline) override {
    const auto frame = wire::OpenFrame(std::as_const(message).bytes());
    const bool upgrade = frame.ok() && frame->header.type == wire::FrameType::kUpgrade;
    auto id = TapEndpoint::Post(std::move(message), deadline);
    *posted_ += upgrade && id.ok() ? 1 : 0;
    return id;
  }

 private:
  std::atomic<int>* posted_;
};

// A tap that lets text pass only when all upgrades that were asked for have been posted: the answer of a tiny model is
// shorter than the way of a request.
transport::Tap TextAfterUpgrades(const std::atomic<int>* posted) {
  return [posted, asked = 0](std::span<const std::byte> message) mutable {
    const auto frame = wire::OpenFrame(message);
    asked += frame.ok() && frame->header.type == wire::FrameType::kUpgradeRequest ? 1 : 0;
    if (frame.ok() && frame->header.type == wire::FrameType::kAnswerText) {
      const auto deadline = transport::After(std::chrono::seconds(20));
      while (*posted < asked && transport::Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return OkStatus();
  };
}

// Tokens sent at 4 bits are raised to the tiers of the larger budget by the planes that were missing.
TEST_F(GenerateTest, APromptIsRefinedWhileItsAnswerIsDecoded) {
  engine::GenerateOptions options;
  options.max_tokens = 40;
  options.ignore_eos = true;
  const auto plain = Disaggregated("progressive:b=0.25,sinks=0", options);
  ASSERT_TRUE(plain.ok()) << plain.status().message();

  const transport::LoopbackPair pair = transport::MakeLoopback({}).value();
  std::atomic<int> posted = 0;
  UpgradesCounted prefill_end(pair.first.get(), &posted);
  transport::TapEndpoint decode_end(pair.second.get(), TextAfterUpgrades(&posted));
  cache::MemoryAccount account;
  Status served;
  std::thread worker([&] {
    served = engine::ServeSession(*decode_->engine, *tokenizer_, decode_end,
                                  {.max_context_tokens = 2000, .account = &account})
                 .status();
  });
  const auto refined =
      engine::GenerateRemote(*prefill_->engine, *tokenizer_, prompt_, prefill_end,
                             {.wire = *codec::ParsePrecision("progressive:b=0.25,sinks=0,refine=0.75")}, options, {});
  pair.first->Close();
  worker.join();
  ASSERT_TRUE(served.ok()) << served.message();
  ASSERT_TRUE(refined.ok()) << refined.status().message();
  const auto tokens = static_cast<uint32_t>(prompt_.size());
  EXPECT_EQ(plain->upgrade_bytes, 0U);
  EXPECT_EQ(plain->tiers.int4, tokens);
  EXPECT_EQ(refined->wire_bytes, plain->wire_bytes);
  EXPECT_EQ(refined->tiers.int4, 0);
  EXPECT_NEAR(refined->tiers.int8, 0.5 * tokens, 1);
  const double token_bytes = 2.0 * decode_->model->params().num_layers * 2 * 32;
  const double planes = token_bytes * (0.5 * tokens + (tokens - refined->tiers.int8));
  EXPECT_GT(static_cast<double>(refined->upgrade_bytes), planes);
  EXPECT_LT(static_cast<double>(refined->upgrade_bytes), 1.03 * planes);
}

// Whatever is offered, by whom: it is held against what was sent, and the worker lives.
TEST_F(GenerateTest, AnOfferThatIsNotOfThePromptIsRefused) {
  const auto count = static_cast<uint32_t>(prompt_.size());
  const uint32_t layers = decode_->model->params().num_layers;
  struct Case {
    const char* word;
    wire::UpgradeOffer offer;
    const char* named;
  };
  const std::vector<Case> cases = {
      {"int8,sinks=0", {std::vector<codec::TierCounts>(layers, {0, count, 0, 0})}, "not in the progressive code"},
      {"fp16", {std::vector<codec::TierCounts>(layers, {count, 0, 0, 0})}, "not in the progressive code"},
      {"pairs:2.0", {std::vector<codec::TierCounts>(layers, {0, 0, 0, 0})}, "not in the progressive code"},
      {"progressive:b=0.3,sinks=0", {{{0, count, 0, 0}}}, "upgrades of 1 layers"},
      {"progressive:b=0.3,sinks=0",
       {std::vector<codec::TierCounts>(layers, {0, count + 1, 0, 0})},
       "tokens are offered"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.named);
    const transport::LoopbackPair pair = transport::MakeLoopback({}).value();
    cache::MemoryAccount account;
    Status served;
    std::thread worker([&] {
      served = engine::ServeSession(*decode_->engine, *tokenizer_, *pair.second,
                                    {.max_context_tokens = 2000, .account = &account})
                   .status();
    });
    // The offer goes before the request.
    transport::TapEndpoint tapped(pair.first.get(), [&](std::span<const std::byte> message) {
      const auto frame = wire::OpenFrame(message);
      if (frame.ok() && frame->header.type == wire::FrameType::kAnswerRequest) {
        const auto deadline = transport::After(std::chrono::seconds(5));
        return pair.first->Post(wire::EncodeUpgradeOffer(frame->header.session, c.offer).value(), deadline).status();
      }
      return OkStatus();
    });
    engine::GenerateOptions options;
    options.max_tokens = 12;
    options.ignore_eos = true;
    const auto report = engine::GenerateRemote(*prefill_->engine, *tokenizer_, prompt_, tapped,
                                               {.wire = *codec::ParsePrecision(c.word)}, options, {});
    pair.first->Close();
    worker.join();
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(served.code(), StatusCode::kCorruption) << served.message();
    EXPECT_NE(served.message().find(c.named), std::string::npos) << served.message();
    EXPECT_EQ(account.in_use_bytes(), 0U);
  }
}

// Without a decode side that has asked yet, and with one token too little to ask.
TEST_F(GenerateTest, AnAnswerMayEndBeforeItIsRefined) {
  for (const uint32_t max_tokens : {1U, 2U, 4U, 5U, 6U}) {
    engine::GenerateOptions options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    const auto report = Disaggregated("progressive:b=0.3,refine=1", options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->completion_tokens, max_tokens);
  }
}

TEST_F(GenerateTest, CancelStopsBothSides) {
  engine::GenerateCallbacks callbacks;
  std::atomic<int> asked = 0;
  callbacks.cancelled = [&] { return ++asked > 2; };
  const auto report = engine::GenerateDisaggregated(*prefill_->engine, *decode_->engine, *tokenizer_, prompt_,
                                                    {*codec::ParsePrecision("int8")}, {}, callbacks);
  EXPECT_EQ(report.status().code(), StatusCode::kCancelled);
}

TEST_F(GenerateTest, CancelEndsATransferThatWaitsForTheLine) {
  engine::GenerateCallbacks callbacks;
  std::atomic<bool> prefilled = false;
  callbacks.prefill = [&](uint32_t done, uint32_t layers) { prefilled = done == layers; };
  callbacks.cancelled = [&] { return prefilled.load(); };
  const auto begin = std::chrono::steady_clock::now();
  const engine::DisaggregatedOptions link{*codec::ParsePrecision("int8"), /*link_gbps=*/1e-5};  // a minute and more
  const auto report =
      engine::GenerateDisaggregated(*prefill_->engine, *decode_->engine, *tokenizer_, prompt_, link, {}, callbacks);
  EXPECT_EQ(report.status().code(), StatusCode::kCancelled) << report.status().message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Utf8, OnlyWholeCharactersAreShown) {
  engine::Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xE2"), "a");
  EXPECT_EQ(stream.Push("\x82"), "");
  EXPECT_EQ(stream.Push("\xAC!"), "\xE2\x82\xAC!");
  EXPECT_EQ(stream.Push("\xFFz"), "\xEF\xBF\xBDz");
  EXPECT_EQ(stream.Push("\xF0\x9F"), "");
  EXPECT_EQ(stream.Finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8, InvalidBytesAreFound) {
  EXPECT_EQ(engine::FindInvalidUtf8("plain \xC3\xA9 \xF0\x9F\x98\x80"), std::string_view::npos);
  EXPECT_EQ(engine::FindInvalidUtf8("ab\xC0\x80"), 2U);         // overlong
  EXPECT_EQ(engine::FindInvalidUtf8("\xED\xA0\x80"), 0U);       // surrogate
  EXPECT_EQ(engine::FindInvalidUtf8("a\xF4\x90\x80\x80"), 1U);  // beyond U+10FFFF
  EXPECT_EQ(engine::FindInvalidUtf8("abc\xE2\x82"), 3U);        // cut
}

// Two of three layers have a window that most of the prompt has left.
TEST(GenerateWithWindows, TheSameTextOnBothPathsAndFiguresOfWhatIsReachable) {
  const TempDir folder;
  const std::string path = folder.File("windows.gguf");
  constexpr uint32_t kWindow = 64;
  ASSERT_TRUE(
      WriteTinyModel(
          {.architecture = "gemma3", .num_layers = 3, .context_length = 1024, .window = kWindow, .window_pattern = 2},
          path)
          .ok());
  const auto prefill = LoadedModel::Load(path, 1);
  const auto decode = LoadedModel::Load(path, 1);
  auto tokenizer = engine::Tokenizer::Load(path, decode->model->info());
  ASSERT_TRUE(tokenizer.ok());
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "word" + std::to_string(i * 7 % 23) + " ";
  }
  const std::vector<int32_t> prompt = *(*tokenizer)->Encode(text, false);
  engine::GenerateOptions options;
  options.max_tokens = 100;
  options.ignore_eos = true;
  for (const char* word : {"fp16", "int8,eq=off", "int4", "spectrum:b=0.5", "spectrum:b=0.3,int4=pages",
                           "progressive:b=0.3,refine=0.75"}) {
    const auto local =
        engine::GenerateLocal(*decode->engine, **tokenizer, prompt, *codec::ParsePrecision(word), options, {});
    ASSERT_TRUE(local.ok()) << local.status().message();
    const uint64_t stored = prompt.size() + local->completion_tokens - 1;
    EXPECT_EQ(local->kv_bytes_fp16, (stored + 2 * kWindow) * 2 * 2 * 32 * sizeof(Half)) << word;
    EXPECT_LE(local->kv_bytes, local->kv_bytes_fp16) << word;
    EXPECT_NEAR(local->tiers.fp16 + local->tiers.int8 + local->tiers.int4,
                static_cast<double>(stored + 2 * kWindow) / 3, 1e-6)
        << word;
    const auto remote = engine::GenerateDisaggregated(*prefill->engine, *decode->engine, **tokenizer, prompt,
                                                      {*codec::ParsePrecision(word)}, options, {});
    ASSERT_TRUE(remote.ok()) << remote.status().message();
    EXPECT_EQ(remote->kv_bytes_fp16, local->kv_bytes_fp16) << word;
    EXPECT_EQ(remote->wire_bytes_fp16, (prompt.size() + 2 * kWindow) * 2 * 2 * 32 * sizeof(Half)) << word;
    EXPECT_LT(remote->wire_bytes, remote->wire_bytes_fp16 + (std::string(word) == "fp16" ? 4000 : 0)) << word;
    if (std::string(word) == "fp16") {
      EXPECT_EQ(remote->text, local->text);
    }
  }
}

}  // namespace
}  // namespace kvant::test
