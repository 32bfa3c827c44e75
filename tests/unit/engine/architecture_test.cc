// Every architecture against libllama, on a tiny random model of it; each of its features, switched off in our engine
// alone, breaks the bound.
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
};

class ArchitectureTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    path_ = WriteTiny(folder_, "model.gguf", GetParam().params);
    tokens_ = RandomTokens(GetParam().params.vocab_size);
    ASSERT_NE(LoadedModel::Load(path_), nullptr);  // libllama runs on the backend that this loads
    OracleLogits(path_, tokens_, {.flash_attention = false, .attention_entropy = &attention_entropy_});
    oracle_ = OracleLogits(path_, tokens_, {});
  }

  double Kl(void (*change)(Model& model)) const {
    auto loaded = LoadedModel::Load(path_);
    if (change != nullptr) {
      change(*loaded->model);
    }
    // libllama's context is of as many tokens: it chooses LongRoPE's factors by that.
    loaded->engine = std::make_unique<engine::Engine>(loaded->model.get(), loaded->backend.get(), kOracleContext);
    const size_t vocab_size = loaded->model->params().vocab_size;
    return Compare(oracle_, OurLogits(*loaded, tokens_, 64), tokens_, 0, vocab_size).mean_kl;
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
  cache::Sequence sequence = engine.NewSequence(*codec::ParsePrecision("fp16"), &loaded->account);
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
