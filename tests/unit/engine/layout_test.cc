// Prompts about as long as what waits at fp16, and groups without a range: where tokens lie, and what is said of them.
#include <gtest/gtest.h>

#include <set>

#include "kvant/codec/layer_block.h"
#include "unit/engine/decode_fixture.h"

namespace kvant::test {
namespace {

class LayoutTest : public DecodeFixture {
 protected:
  // One token after the other. Returns the likeliest next one after each.
  std::vector<int32_t> Feed(cache::Sequence& sequence, std::span<const int32_t> tokens) {
    std::vector<int32_t> likeliest;
    std::vector<float> logits;
    for (const int32_t token : tokens) {
      const engine::DecodeItem item{&sequence, token};
      Step(std::span(&item, 1), &logits);
      likeliest.push_back(Likeliest(logits));
    }
    return likeliest;
  }

  // The exact rows before any encoded one, of all layers and heads.
  static std::vector<std::byte> SinksOf(const cache::Sequence& sequence, uint32_t num_sinks) {
    std::vector<std::byte> rows;
    for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
      const codec::LayerBlockLayout layout = sequence.layer(layer).block_layout();
      std::vector<std::byte> block(layout.total_bytes());
      sequence.layer(layer).ExportBlock(block, nullptr);
      for (uint32_t head = 0; head < sequence.shape().num_kv_heads; ++head) {
        const auto parts = codec::HeadOf(layout, std::span<const std::byte>(block), head);
        for (const auto& [sinks, tail] :
             {std::pair(parts.sink_keys, parts.tail_keys), std::pair(parts.sink_values, parts.tail_values)}) {
          std::vector<std::byte> exact(sinks.begin(), sinks.end());
          exact.insert(exact.end(), tail.begin(), tail.end());  // at fp16 the sinks are among them
          exact.resize(size_t{2} * num_sinks * sequence.shape().head_dim);
          rows.insert(rows.end(), exact.begin(), exact.end());
        }
      }
    }
    return rows;
  }

  static std::set<uint32_t> LengthsAround(uint32_t sinks, uint32_t run) {
    std::set<uint32_t> lengths = {1, 2, run - 1, run, run + 1, 2 * run - 1, 2 * run, 2 * run + 1};
    lengths.merge(std::set<uint32_t>{sinks + run - 1, sinks + run, sinks + run + 1});
    return lengths;
  }
};

constexpr const char* kWords[] = {"fp16",
                                  "int8",
                                  "int8,sinks=0,residual=32",
                                  "int4,eq=off,residual=32",
                                  "spectrum:b=0.4",
                                  "spectrum:b=0.3,int4=pages",
                                  "pnmix:3/1@50%,v=2",
                                  "pairs:2.0,v=2,g=32,sinks=4",
                                  "pairs:2.0,v=3,g=64",
                                  "pairs:2.0,v=8,sinks=0"};

// A length reached by a prompt or by an answer, or by any share of both.
TEST_F(LayoutTest, WhereATokenLiesDependsOnItsPositionAndSinksStayAsTheyWere) {
  for (const char* word : kWords) {
    const codec::Precision precision = *codec::ParsePrecision(word);
    const uint32_t sinks = precision.is_exact() ? 32 : precision.num_sinks;
    const uint32_t run = precision.is_exact() ? 128 : precision.residual;
    for (const uint32_t length : LengthsAround(precision.num_sinks, run)) {
      const std::vector<int32_t> tokens = SomeTokens(length + run + 3, 3);
      std::vector<float> logits;
      cache::Sequence grown = Prefilled(word, std::span(tokens).first(length), &logits);
      const uint32_t kept = std::min(sinks, length);
      const std::vector<std::byte> before = SinksOf(grown, kept);
      EXPECT_EQ(before, SinksOf(Prefilled("fp16", std::span(tokens).first(length), &logits), kept));
      for (const uint32_t count : {1U, run + 2}) {
        Feed(grown, std::span(tokens).subspan(grown.num_tokens(), count));
        const cache::Sequence prompt = Prefilled(word, std::span(tokens).first(grown.num_tokens()), &logits);
        for (uint32_t layer = 0; layer < grown.shape().num_layers; ++layer) {
          EXPECT_EQ(grown.layer(layer).split(), prompt.layer(layer).split()) << word << ' ' << length << '+' << count;
        }
        EXPECT_TRUE(precision.spectrum || grown.stored_bytes() == prompt.stored_bytes()) << word << ' ' << length;
      }
      EXPECT_EQ(SinksOf(grown, kept), before) << word << ' ' << length;
    }
  }
}

TEST_F(LayoutTest, AnExactAnswerIsTheSameWhetherItsBeginningIsPromptOrAnswer) {
  for (const uint32_t length : LengthsAround(0, 128)) {
    const std::vector<int32_t> prompt = SomeTokens(length, 3);
    const std::vector<int32_t> answer = Greedy("fp16", prompt, 131 + 8);
    for (const ptrdiff_t given : {1, 131}) {
      std::vector<int32_t> longer = prompt;
      longer.insert(longer.end(), answer.begin(), answer.begin() + given);
      const std::vector<int32_t> rest(answer.begin() + given, answer.begin() + given + 8);
      EXPECT_EQ(Greedy("fp16", longer, 8), rest) << length << '+' << given;
    }
  }
}

class ConstantTest : public LayoutTest {
 protected:
  struct Parts {
    bool key_pair = false;          ///< keys of the first pair of every head are zero
    std::optional<float> values{};  ///< every value is this
  };

  // Where the architecture has biases, they are what makes the constants.
  void LoadConstant(const char* architecture, const Parts& parts) {
    const TinyModelParams params{.architecture = architecture, .context_length = 1024};
    ASSERT_TRUE(WriteTinyModel(params, path()).ok());
    const std::string constant = folder_.File("constant.gguf");
    const auto edit = [&](std::string_view name, std::span<float> values, size_t columns) {
      if (parts.values && name.ends_with("attn_v.weight")) {
        std::fill(values.begin(), values.end(), 0.0F);
      } else if (parts.values && name.ends_with("attn_v.bias")) {
        std::fill(values.begin(), values.end(), *parts.values);
      } else if (parts.values && name.ends_with("attn_output.weight")) {
        std::for_each(values.begin(), values.end(), [](float& x) { x /= 64; });  // the token itself stays to be seen
      } else if (parts.key_pair && (name.ends_with("attn_k.weight") || name.ends_with("attn_k.bias"))) {
        ZeroFirstPairs(values, name.ends_with("bias") ? 1 : columns, params.head_dim);
      }
    };
    ASSERT_TRUE(WriteF32Model(path(), constant, edit).ok());
    Load(constant);
  }
  // Values that are turned are not equal any more, and the coarse progressive code has no level at the largest one:
  // of these the bound of their groups holds.
  static bool KeepsEqualValues(const codec::Precision& precision) {
    return !precision.is_progressive() && !(precision.pairs && precision.pairs->rotate_values);
  }
  static void ZeroFirstPairs(std::span<float> values, size_t columns, size_t head_dim) {
    for (size_t row = 0; row < values.size() / columns; ++row) {
      const size_t channel = row % head_dim;
      if (channel < 2 || channel == head_dim / 2) {  // of either layout of RoPE
        std::fill_n(values.begin() + static_cast<ptrdiff_t>(row * columns), columns, 0.0F);
      }
    }
  }
};

// Whatever the keys say, attention over equal values gives that value: any other answer has another value in it. The
// tokens are given, since an answer that no earlier token has a say in soon repeats itself.
TEST_F(ConstantTest, EqualValuesGiveTheExactAnswer) {
  struct Case {
    const char* architecture;
    float value;
  };
  const std::vector<int32_t> prompt = SomeTokens(300, 4);
  const std::vector<int32_t> given = SomeTokens(64, 5);
  for (const Case& c : {Case{"llama", 0}, Case{"qwen2", 0}, Case{"qwen2", 9}, Case{"qwen2", -9}}) {
    LoadConstant(c.architecture, {.key_pair = true, .values = c.value});
    const auto follow = [&](const char* word) {
      std::vector<float> logits;
      cache::Sequence sequence = Prefilled(word, prompt, &logits);
      return Feed(sequence, given);
    };
    const std::vector<int32_t> exact = follow("fp16");
    ASSERT_GT(std::set<int32_t>(exact.begin(), exact.end()).size(), 10U) << "answers that would hide a change";
    for (const char* word : kEveryKind) {
      if (c.value == 0 || KeepsEqualValues(codec::ParsePrecision(word).value())) {
        EXPECT_EQ(follow(word), exact) << word << ", " << c.architecture << ", values of " << c.value;
      }
    }
  }
}

// Maps are of the prompt that fills the first page: a shorter one before it has said too little.
TEST_F(LayoutTest, PairMapsAreChosenAgainUntilThereIsAPage) {
  for (const char* word : {"pnmix:3/1@50%,v=2", "pairs:2.0"}) {
    std::vector<float> logits;
    cache::Sequence sequence = Prefilled(word, SomeTokens(20, 1), &logits);
    const auto go_on = [&](size_t count, uint64_t seed) {
      engine::EncodeInPlace encode(sequence.precision(), codec::PromptTail::kByPosition, &loaded_->backend->pool());
      ASSERT_TRUE(loaded_->engine->Prefill(sequence, SomeTokens(count, seed), encode, {}, &logits).ok());
    };
    const codec::LayerMaps of_little = sequence.layer(1).maps();
    go_on(300, 2);
    const codec::LayerMaps chosen = sequence.layer(1).maps();
    EXPECT_NE(chosen, of_little) << word;
    go_on(300, 3);
    EXPECT_EQ(sequence.layer(1).maps(), chosen) << word;
  }
}

}  // namespace
}  // namespace kvant::test
