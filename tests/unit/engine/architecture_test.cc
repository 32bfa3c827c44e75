// Every architecture against libllama, on a tiny random model of it; each of its features, switched off in our engine
// alone, breaks the bound.
#include <algorithm>
#include <cmath>
#include <ostream>

#include "support/tiny_oracle.h"

namespace kvant::test {
namespace {

using engine::LayerWeights;
using engine::Model;
using engine::ModelParams;

// Model shows its parts only to be read; the test owns it, so it may change them.
ModelParams& ParamsOf(Model& model) { return const_cast<ModelParams&>(model.params()); }

template <typename Change>
void EachLayer(Model& model, const Change& change) {
  for (LayerWeights& layer : const_cast<std::vector<LayerWeights>&>(model.layers())) {
    change(layer);
  }
}

/// A feature, and what takes it away from a loaded model.
struct Switch {
  const char* name;
  void (*off)(Model& model);
};

struct Case {
  const char* name;
  TinyModelParams params;
  std::vector<Switch> switches;
};
void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

const Switch kBias{"QKV bias", [](Model& model) {
                     EachLayer(model, [](LayerWeights& layer) {
                       layer.attn_q_bias = layer.attn_k_bias = layer.attn_v_bias = nullptr;
                     });
                   }};
const Switch kKeyBias{"bias of keys alone",
                      [](Model& model) { EachLayer(model, [](LayerWeights& layer) { layer.attn_k_bias = nullptr; }); }};
const Switch kHalves{"RoPE of halves",
                     [](Model& model) { ParamsOf(model).rope.layout = engine::RopeLayout::kInterleaved; }};
const Switch kQkNorm{"QK-norm", [](Model& model) {
                       EachLayer(model, [](LayerWeights& layer) { layer.attn_q_norm = layer.attn_k_norm = nullptr; });
                     }};
const Switch kGateFirst{"gate before up in the fused matrix", [](Model& model) {
                          EachLayer(model, [](LayerWeights& layer) { std::swap(layer.ffn_gate, layer.ffn_up); });
                        }};
const Switch kLongFactors{"LongRoPE's factors", [](Model& model) { ParamsOf(model).rope.has_long_factors = false; }};
const Switch kContextChoice{"long or short factors by context", [](Model& model) {
                              uint32_t& original = ParamsOf(model).rope.original_context;
                              original = original > 512 ? 1 : 4096;
                            }};
const Switch kAttentionFactor{"LongRoPE's attention factor",
                              [](Model& model) { ParamsOf(model).rope.attn_factor = 1.0F; }};
const Switch kPartialRope{"RoPE of a part of the head",
                          [](Model& model) { ParamsOf(model).rope.dims = model.params().head_dim; }};

const Switch kEmbeddingScale{"embedding scale", [](Model& model) { ParamsOf(model).embedding_scale = 1.0F; }};
const Switch kGelu{"GeGLU", [](Model& model) { ParamsOf(model).activation = engine::Activation::kSilu; }};
const Switch kAttentionPostNorm{"norm after attention", [](Model& model) {
                                  EachLayer(model, [](LayerWeights& layer) { layer.attn_post_norm = nullptr; });
                                }};
const Switch kFeedForwardPostNorm{"norm after the feed-forward network", [](Model& model) {
                                    EachLayer(model, [](LayerWeights& layer) { layer.ffn_post_norm = nullptr; });
                                  }};
const Switch kQueryScale{"query scale by the head size", [](Model& model) {
                           const ModelParams& params = model.params();
                           ParamsOf(model).query_scale =
                               1.0F / std::sqrt(static_cast<float>(params.embedding / params.num_q_heads));
                         }};
const Switch kAttentionCap{"cap of attention logits", [](Model& model) { ParamsOf(model).attention_cap = 0.0F; }};
const Switch kOutputCap{"cap of output logits", [](Model& model) { ParamsOf(model).output_cap = 0.0F; }};
const Switch kWindow{"sliding window", [](Model& model) {
                       std::vector<uint32_t>& windows = ParamsOf(model).windows;
                       // RoPE of these layers stays what it is: a window longer than the context hides nothing.
                       std::for_each(windows.begin(), windows.end(), [](uint32_t& w) { w = w > 0 ? 1 << 20 : 0; });
                     }};
const Switch kWindowByOne{"one token of the window", [](Model& model) {
                            std::vector<uint32_t>& windows = ParamsOf(model).windows;
                            std::for_each(windows.begin(), windows.end(), [](uint32_t& w) { w += w > 0 ? 1 : 0; });
                          }};
const Switch kLayerPattern{"layers without a window", [](Model& model) {
                             std::vector<uint32_t>& windows = ParamsOf(model).windows;
                             std::fill(windows.begin(), windows.end(), windows.front());
                           }};
const Switch kWindowBase{"RoPE base of windowed layers",
                         [](Model& model) { ParamsOf(model).rope.window_base = model.params().rope.base; }};
const Switch kGlobalScaling{"RoPE scaling of the other layers alone",
                            [](Model& model) { ParamsOf(model).rope.window_factor = model.params().rope.factor; }};

const std::vector<Case> kCases = {
    {"qwen2", {.architecture = "qwen2", .pre = "qwen2"}, {kBias, kKeyBias, kHalves}},
    {"qwen2_without_bias", {.architecture = "qwen2", .qkv_bias = false}, {kHalves}},
    {"qwen3", {.architecture = "qwen3", .pre = "qwen2"}, {kQkNorm, kHalves}},
    {"qwen3_head_dim", {.architecture = "qwen3", .embedding = 96}, {kQkNorm}},
    {"phi3", {.architecture = "phi3", .tied_embeddings = false}, {kHalves, kGateFirst}},
    {"phi3_long",
     {.architecture = "phi3", .context_length = 512, .scaling = TinyScaling::kLongRope},
     {kLongFactors, kContextChoice, kAttentionFactor}},
    {"phi3_short",
     {.architecture = "phi3", .rope_dims = 24, .context_length = 8192, .scaling = TinyScaling::kLongRope},
     {kLongFactors, kContextChoice, kAttentionFactor}},
    {"phi3_partial_rope", {.architecture = "phi3", .rope_dims = 24}, {kPartialRope, kHalves}},
    {"gemma2",
     {.architecture = "gemma2",
      .head_dim = 64,
      .embedding = 128,
      .window = 48,
      .attention_cap = 16.0F,
      .output_cap = 20.0F,
      .gain = 4.5F},
     {kEmbeddingScale, kGelu, kAttentionPostNorm, kFeedForwardPostNorm, kQueryScale, kAttentionCap, kOutputCap, kWindow,
      kWindowByOne, kLayerPattern, kHalves}},
    {"gemma2_default_caps", {.architecture = "gemma2"}, {kHalves}},
    {"gemma3",
     {.architecture = "gemma3",
      .num_layers = 3,
      .head_dim = 64,
      .embedding = 128,
      .scaling = TinyScaling::kLinear,
      .rope_base = 100000.0F,
      .window = 48,
      .window_pattern = 2},
     {kEmbeddingScale, kGelu, kAttentionPostNorm, kFeedForwardPostNorm, kQueryScale, kQkNorm, kWindow, kWindowByOne,
      kLayerPattern, kWindowBase, kGlobalScaling, kHalves}},
    {"gemma3_default_pattern",
     {.architecture = "gemma3", .num_layers = 7, .window = 64, .output_cap = 16.0F, .gain = 4.0F},
     {kOutputCap, kWindow, kLayerPattern}},
    {"gemma3_named_layers",
     {.architecture = "gemma3", .window = 33, .window_layers = std::vector{true, false}, .window_base = 2000.0F},
     {kWindow, kLayerPattern, kWindowBase}},
    {"gemma3_without_windows", {.architecture = "gemma3", .head_dim = 256}, {kQkNorm, kEmbeddingScale}},
};

class ArchitectureTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    path_ = WriteTiny(folder_, "model.gguf", GetParam().params);
    tokens_ = RandomTokens(GetParam().params.vocab_size);
    ASSERT_NE(LoadedModel::Load(path_, 1), nullptr);  // libllama runs on the backend that this loads
    const uint32_t window = GetParam().params.window > 0 ? GetParam().params.window : UINT32_MAX;
    OracleLogits(
        path_, tokens_,
        {.flash_attention = false, .num_threads = 1, .attention_entropy = &attention_entropy_, .window = window});
    oracle_ = OracleLogits(path_, tokens_, {.num_threads = 1});
  }

  double Kl(void (*change)(Model& model)) const {
    auto loaded = LoadedModel::Load(path_, 1);
    if (change != nullptr) {
      change(*loaded->model);
    }
    // libllama's context is of as many tokens: it chooses LongRoPE's factors by that.
    loaded->engine = std::make_unique<engine::Engine>(loaded->model.get(), loaded->backend.get(), kOracleContext);
    const size_t vocab_size = loaded->model->params().vocab_size;
    return Compare(oracle_, OurLogits(*loaded, tokens_, 64), tokens_, 0, vocab_size).mean_kl;
  }

  // Every row meets what the cache keeps once the prompt is in it.
  double KlOverTheStoredPrompt() const {
    auto loaded = LoadedModel::Load(path_, 1);
    loaded->engine = std::make_unique<engine::Engine>(loaded->model.get(), loaded->backend.get(), kOracleContext);
    const auto ours = OurLogits(*loaded, tokens_, 64, 0, engine::PromptAttention::kQuantized);
    return Compare(oracle_, ours, tokens_, 0, loaded->model->params().vocab_size).mean_kl;
  }

  // The second half of the tokens one by one.
  double DecodeKl() const {
    auto loaded = LoadedModel::Load(path_, 1);
    engine::Engine engine(loaded->model.get(), loaded->backend.get(), kOracleContext);
    cache::Sequence sequence = engine.NewSequence(*codec::ParsePrecision("fp16"), &loaded->account).value();
    engine::EncodeInPlace consumer(sequence.precision(), codec::PromptTail::kByPosition, nullptr);
    const size_t prompt = tokens_.size() / 2;
    const size_t vocab_size = loaded->model->params().vocab_size;
    std::vector<float> logits;
    EXPECT_TRUE(engine.Prefill(sequence, std::span(tokens_).first(prompt), consumer, {}, &logits).ok());
    std::vector<float> all(oracle_.begin(), oracle_.begin() + static_cast<ptrdiff_t>((prompt - 1) * vocab_size));
    all.insert(all.end(), logits.begin(), logits.end());
    for (size_t i = prompt; i < tokens_.size(); ++i) {
      const engine::DecodeItem item{&sequence, tokens_[i]};
      EXPECT_TRUE(engine.Decode(std::span(&item, 1), &logits).ok());
      EXPECT_TRUE(sequence.EncodeDue(nullptr).ok());
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return Compare(oracle_, all, tokens_, prompt - 1, vocab_size).mean_kl;
  }

  static constexpr uint32_t kOracleContext = 512;
  TempDir folder_;
  std::string path_;
  std::vector<int32_t> tokens_;
  std::vector<float> oracle_;
  double attention_entropy_ = 1;
};

TEST_P(ArchitectureTest, AgreesAndEachFeatureWouldBeMissed) {
  const double output_entropy = RelativeEntropy(oracle_, GetParam().params.vocab_size);
  const double right = Kl(nullptr);
  std::printf("%s: KL %.3g; entropy of attention rows %.3f and of outputs %.3f of the uniform one\n", GetParam().name,
              right, attention_entropy_, output_entropy);
  EXPECT_LT(attention_entropy_, 0.5);
  EXPECT_LT(output_entropy, 0.5);
  EXPECT_LE(right, kOracleBound);
  EXPECT_LE(DecodeKl(), kOracleBound);
  EXPECT_LE(KlOverTheStoredPrompt(), kOracleBound);
  for (const Switch& feature : GetParam().switches) {
    const double wrong = Kl(feature.off);
    std::printf("%s without %s: KL %.3g\n", GetParam().name, feature.name, wrong);
    EXPECT_GT(wrong, 100 * kOracleBound) << feature.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureTest, testing::ValuesIn(kCases),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(LongRope, ASequenceLongerThanItsFactorsAreForIsRefused) {
  const TempDir folder;
  const std::string path = WriteTiny(folder, "model.gguf", {.architecture = "phi3", .scaling = TinyScaling::kLongRope});
  auto loaded = LoadedModel::Load(path);
  ASSERT_NE(loaded, nullptr);
  engine::Engine engine(loaded->model.get(), loaded->backend.get(), 100);
  cache::Sequence sequence = engine.NewSequence(*codec::ParsePrecision("fp16"), &loaded->account).value();
  engine::EncodeInPlace consumer(sequence.precision(), codec::PromptTail::kByPosition, nullptr);
  std::vector<float> logits;
  const std::vector<int32_t> tokens = RandomTokens(300, 101);
  const Status prompt = engine.Prefill(sequence, tokens, consumer, {}, &logits);
  EXPECT_EQ(prompt.code(), StatusCode::kCapacityExceeded) << prompt.message();
  ASSERT_TRUE(engine.Prefill(sequence, std::span(tokens).first(100), consumer, {}, &logits).ok());
  const engine::DecodeItem item{&sequence, tokens.back()};
  const Status step = engine.Decode(std::span(&item, 1), &logits);
  EXPECT_EQ(step.code(), StatusCode::kCapacityExceeded) << step.message();
  EXPECT_NE(step.message().find("101 tokens in an engine for 100"), std::string::npos) << step.message();
}

}  // namespace
}  // namespace kvant::test
