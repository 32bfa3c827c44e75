// Decoding over compressed caches on tiny models: what an answer may and may not depend on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "unit/engine/decode_fixture.h"

namespace kvant::test {
namespace {

constexpr const char* kWords[] = {
    "fp16", "int8", "int8,eq=off,sinks=0", "int4", "int4,eq=off", "int4,residual=32", "int8,residual=inf"};

class DecodeTest : public DecodeFixture {};

TEST_F(DecodeTest, LogitsAreTheSameBitsWhateverTheNeighbours) {
  for (const char* word : kWords) {
    SCOPED_TRACE(word);
    const size_t lengths[] = {400, 50, 120, 7, 300, 129, 132, 1};
    std::vector<cache::Sequence> alone;
    std::vector<cache::Sequence> together;
    std::vector<float> logits;
    for (size_t i = 0; i < std::size(lengths); ++i) {
      const std::vector<int32_t> prompt = SomeTokens(lengths[i], i);
      alone.push_back(Prefilled(word, prompt, &logits));
      together.push_back(Prefilled(word, prompt, &logits));
    }
    for (int step = 0; step < 40; ++step) {
      std::vector<engine::DecodeItem> items;
      for (cache::Sequence& sequence : together) {
        items.push_back({&sequence, (step * 31 + 5) % 256});
      }
      std::vector<float> batch;
      Step(items, &batch);
      const size_t vocab_size = batch.size() / items.size();
      for (size_t i = 0; i < items.size(); ++i) {
        const engine::DecodeItem item{&alone[i], items[i].token};
        Step(std::span(&item, 1), &logits);
        ASSERT_TRUE(std::equal(logits.begin(), logits.end(), batch.begin() + static_cast<ptrdiff_t>(i * vocab_size)))
            << "sequence " << i << ", step " << step;
      }
    }
  }
}

TEST_F(DecodeTest, ChunksOfThePromptDoNotMatter) {
  const std::vector<int32_t> prompt = SomeTokens(333, 1);
  for (const char* word : kWords) {
    std::vector<float> whole;
    std::vector<float> pieces;
    Prefilled(word, prompt, &whole, codec::PromptTail::kByPosition, 512);
    Prefilled(word, prompt, &pieces, codec::PromptTail::kByPosition, 37);
    EXPECT_EQ(whole, pieces) << word;
  }
}

TEST_F(DecodeTest, LayoutIsAFunctionOfPositionAlone) {
  for (const char* word : {"int8", "int4", "int4,eq=off", "int8,residual=32", "int8,sinks=0"}) {
    SCOPED_TRACE(word);
    for (const size_t length : {1U, 2U, 127U, 128U, 129U, 132U, 133U, 255U, 260U, 261U}) {
      std::vector<float> logits;
      const std::vector<int32_t> tokens = SomeTokens(length, 3);
      cache::Sequence by_prompt = Prefilled(word, tokens, &logits);
      cache::Sequence by_step = Prefilled(word, std::span(tokens).first(1), &logits);
      for (size_t i = 1; i < length; ++i) {
        const engine::DecodeItem item{&by_step, tokens[i]};
        Step(std::span(&item, 1), &logits);
      }
      EXPECT_EQ(by_prompt.layer(0).split(), by_step.layer(0).split()) << length;
      EXPECT_EQ(by_prompt.layer(1).split(), by_step.layer(1).split()) << length;
    }
  }
}

TEST_F(DecodeTest, MemoryIsCountedAndReturned) {
  ASSERT_EQ(loaded_->account.in_use_bytes(), 0U);
  {
    std::vector<float> logits;
    const cache::Sequence sequence = Prefilled("int4", SomeTokens(700, 1), &logits);
    EXPECT_GT(sequence.allocated_bytes(), sequence.stored_bytes());
    // The maps are kept outside of pages.
    const uint64_t map_bytes = 2 * 2 * 2 * 3 * 32;
    EXPECT_EQ(loaded_->account.in_use_bytes() + map_bytes, sequence.allocated_bytes());
  }
  EXPECT_EQ(loaded_->account.in_use_bytes(), 0U);
}

TEST_F(DecodeTest, AFullCacheIsAnErrorAndLeavesNothingBehind) {
  cache::MemoryAccount small(300'000);
  cache::Sequence sequence = loaded_->engine->NewSequence(*codec::ParsePrecision("fp16"), &small).value();
  engine::EncodeInPlace encode(sequence.precision(), codec::PromptTail::kByPosition, nullptr);
  std::vector<float> logits;
  const Status status = loaded_->engine->Prefill(sequence, SomeTokens(2000, 1), encode, {}, &logits);
  EXPECT_EQ(status.code(), StatusCode::kCapacityExceeded);
  EXPECT_NE(status.message().find("300000"), std::string::npos) << status.message();
}

TEST_F(DecodeTest, TokensOutsideTheVocabularyAreRefused) {
  std::vector<float> logits;
  cache::Sequence sequence = Prefilled("int8", SomeTokens(10, 1), &logits);
  for (const int32_t token : {-1, 300, 1 << 30}) {
    const engine::DecodeItem item{&sequence, token};
    EXPECT_EQ(loaded_->engine->Decode(std::span(&item, 1), &logits).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(sequence.num_tokens(), 10U);
}

// Greedy at b = 0.5 gives every token to int8, at b = 0.25 to int4: then everything is as with the plain precision.
TEST_F(DecodeTest, SpectrumAtTheEndsOfABudgetIsThePlainPrecisionBitForBit) {
  const std::vector<int32_t> prompt = SomeTokens(700, 3);
  for (const auto& [spectrum, plain] : {std::pair("spectrum:b=0.5", "int8"), std::pair("spectrum:b=0.25", "int4"),
                                        std::pair("spectrum:b=0.5,eq=off,sinks=0", "int8,eq=off,sinks=0"),
                                        std::pair("spectrum:b=0.25,eq=off,sinks=0", "int4,eq=off,sinks=0")}) {
    std::vector<float> of_spectrum;
    std::vector<float> of_plain;
    cache::Sequence a = Prefilled(spectrum, prompt, &of_spectrum, codec::PromptTail::kEncodeAll);
    cache::Sequence b = Prefilled(plain, prompt, &of_plain, codec::PromptTail::kEncodeAll);
    EXPECT_EQ(a.layer(0).tier_counts(), b.layer(0).tier_counts());
    for (int32_t step = 0; step < 20; ++step) {
      const engine::DecodeItem item_a{&a, step};
      const engine::DecodeItem item_b{&b, step};
      Step(std::span(&item_a, 1), &of_spectrum);
      Step(std::span(&item_b, 1), &of_plain);
      ASSERT_EQ(of_spectrum, of_plain) << spectrum << " step " << step;
    }
  }
}

// Catches what the engine measures of a prompt.
class MassProbe : public engine::LayerConsumer {
 public:
  explicit MassProbe(engine::PromptStatistics wanted) : wanted_(wanted) {}
  engine::PromptStatistics wanted() const override { return wanted_; }
  Status LayerDone(uint32_t, cache::LayerCache&, const engine::LayerStatistics& statistics) override {
    layers.push_back(statistics.mass);
    return OkStatus();
  }
  std::vector<std::vector<std::vector<float>>> layers;

 private:
  engine::PromptStatistics wanted_;
};

TEST_F(DecodeTest, AttentionMassAddsUpAndDependsOnNothingButTheTokens) {
  const std::vector<int32_t> prompt = SomeTokens(600, 4);
  const auto measure = [&](engine::PromptStatistics wanted, uint32_t chunk_tokens) {
    cache::Sequence sequence = loaded_->engine->NewSequence(*codec::ParsePrecision("fp16"), &loaded_->account).value();
    MassProbe probe(wanted);
    engine::PrefillOptions options;
    options.chunk_tokens = chunk_tokens;
    std::vector<float> logits;
    const Status status = loaded_->engine->Prefill(sequence, prompt, probe, options, &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    return probe.layers;
  };
  const auto mass = measure(engine::PromptStatistics::kMass, 512);
  ASSERT_EQ(mass.size(), loaded_->model->params().num_layers);
  for (const auto& layer : mass) {
    ASSERT_EQ(layer.size(), 3U);
    for (const std::vector<float>& head : layer) {
      ASSERT_EQ(head.size(), 600U);
      // Three query heads a KV head, and every query's attention adds up to 1.
      EXPECT_NEAR(std::accumulate(head.begin(), head.end(), 0.0), 3.0 * 600, 1e-2);
      EXPECT_GT(head[0], head[599]);  // 600 queries see the first token, one sees the last
    }
  }
  EXPECT_EQ(measure(engine::PromptStatistics::kMass, 512), mass);
  EXPECT_EQ(measure(engine::PromptStatistics::kMass, 128), mass);
  const auto sampled = measure(engine::PromptStatistics::kSampledMass, 512);
  // Of 38 blocks of 16 queries the 1st, 9th, 17th, 25th, 33rd, and the last one with its 8.
  EXPECT_NEAR(std::accumulate(sampled[1][2].begin(), sampled[1][2].end(), 0.0), 3.0 * (5 * 16 + 8), 1e-2);
  EXPECT_TRUE(measure(engine::PromptStatistics::kNone, 512)[0].empty());
}

TEST_F(DecodeTest, MassIsMeasuredOfExactAttentionOnly) {
  cache::Sequence sequence =
      loaded_->engine->NewSequence(*codec::ParsePrecision("spectrum"), &loaded_->account).value();
  engine::EncodeInPlace encode(sequence.precision(), codec::PromptTail::kEncodeAll, nullptr);
  engine::PrefillOptions options;
  options.attention = engine::PromptAttention::kQuantized;
  std::vector<float> logits;
  EXPECT_EQ(loaded_->engine->Prefill(sequence, SomeTokens(300, 1), encode, options, &logits).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(DecodeTest, EveryRuleScopeAndImportanceRuns) {
  const std::vector<int32_t> prompt = SomeTokens(400, 3);
  std::vector<float> exact;
  const cache::Sequence reference = Prefilled("fp16", prompt, &exact);
  Prefilled("int8", prompt, &exact);  // the prompt itself is exact, with sinks of its own in the order of sums
  for (const char* word :
       {"spectrum:b=0.4", "spectrum:b=0.4,scope=layer", "spectrum:b=0.4,scope=model", "spectrum:b=0.4,importance=norm",
        "spectrum:b=0.4,importance=norm,scope=model", "spectrum:b=0.4,importance=position",
        "spectrum:b=0.4,importance=sampled,decay=0.01", "spectrum:b=0.4,policy=random",
        "spectrum:b=0.4,policy=balanced", "spectrum:b=0.4,policy=balanced-even", "spectrum:b=0.3,policy=sink-protect",
        "spectrum:b=0.3,policy=adaptive", "spectrum:b=0.3,int4=pages", "pdtrim:0.5", "pdtrim:0.5,first=0.5",
        "sws:0.5"}) {
    std::vector<float> logits;
    cache::Sequence sequence = Prefilled(word, prompt, &logits, codec::PromptTail::kEncodeAll);
    EXPECT_EQ(logits, exact) << word;
    EXPECT_EQ(sequence.num_tokens(), 400U) << word;
    EXPECT_LT(sequence.stored_bytes(), reference.stored_bytes() * 7 / 10) << word;
    const engine::DecodeItem item{&sequence, 5};
    Step(std::span(&item, 1), &logits);
    EXPECT_EQ(logits.size(), exact.size());
  }
}

TEST_F(DecodeTest, Int8AnswersStayCloseToExactOnes) {
  const std::vector<int32_t> prompt = SomeTokens(500, 9);
  std::vector<float> exact;
  std::vector<float> coded;
  const int32_t next = 17;
  cache::Sequence a = Prefilled("fp16", prompt, &exact);
  cache::Sequence b = Prefilled("int8", prompt, &coded);
  const engine::DecodeItem item_a{&a, next};
  const engine::DecodeItem item_b{&b, next};
  Step(std::span(&item_a, 1), &exact);
  Step(std::span(&item_b, 1), &coded);
  float largest = 0;
  float error = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::fabs(exact[i]));
    error = std::max(error, std::fabs(exact[i] - coded[i]));
  }
  EXPECT_GT(error, 0.0F) << "the cache was not quantized at all";
  EXPECT_LT(error, 0.05F * largest);
}

TEST_F(DecodeTest, KeysBeyondFp16AreAnErrorWithLayerAndPosition) {
  const std::string path = folder_.File("huge.gguf");
  ASSERT_TRUE(
      WriteOutlierModel(folder_.File("tiny.gguf"), path, {.scale = 1048576.0F, .layers = OutlierLayers::kEnds}).ok());
  const auto huge = LoadedModel::Load(path);
  ASSERT_NE(huge, nullptr);
  for (const char* word : {"fp16", "int8", "int4"}) {
    cache::Sequence sequence = huge->engine->NewSequence(*codec::ParsePrecision(word), &huge->account).value();
    engine::EncodeInPlace encode(sequence.precision(), codec::PromptTail::kByPosition, nullptr);
    std::vector<float> logits;
    const Status status = huge->engine->Prefill(sequence, SomeTokens(20, 1), encode, {}, &logits);
    EXPECT_EQ(status.code(), StatusCode::kNumeric) << word;
    EXPECT_NE(status.message().find("in K at layer 0, position"), std::string::npos) << status.message();
  }
}

TEST_F(DecodeTest, ARefusedStepDoesNotSpoilTheNextOne) {
  const std::vector<int32_t> prompt = SomeTokens(40, 2);
  const std::vector<int32_t> before = Greedy("int8", prompt, 20);
  std::vector<float> logits;
  cache::Sequence sequence = Prefilled("int8", prompt, &logits);
  const engine::DecodeItem bad{&sequence, -5};
  EXPECT_FALSE(loaded_->engine->Decode(std::span(&bad, 1), &logits).ok());
  EXPECT_EQ(Greedy("int8", prompt, 20), before);
}

}  // namespace
}  // namespace kvant::test
