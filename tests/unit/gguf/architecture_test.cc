// What each architecture beyond llama may and must have, and what its keys come to.
#include <gtest/gtest.h>

#include <cmath>

#include "kvant/engine/gguf_check.h"
#include "support/gguf_fixture.h"
#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

using test::GgufImage;
using enum StatusCode;

void ExchangeNames(GgufImage& image, const char* left, const char* right) {
  GgufImage::Tensor& first = image.TensorAt(left);
  GgufImage::Tensor& second = image.TensorAt(right);
  std::swap(first.name, second.name);
}

void Rename(GgufImage& image, const char* name) { image.TensorAt(name).name = "nothing"; }

const Refusal kRefusals[] = {
    {"qwen2_bias_of_keys_for_queries", [](GgufImage& i) { ExchangeNames(i, "blk.0.attn_q.bias", "blk.0.attn_k.bias"); },
     kCorruption, "tensor 'blk.0.attn_q.bias': shape [32, 1], the hyper-parameters ask for [64, 1]", "qwen2"},
    {"qwen2_head_dim",
     [](GgufImage& i) {
       i.SetU32("qwen2.attention.key_length", 64);
       i.SetU32("qwen2.attention.value_length", 64);
     },
     kModelUnsupported, "qwen2.attention.key_length: 64, but the embedding's share of a head is 32", "qwen2"},
    {"qwen2_window", [](GgufImage& i) { i.SetU32("qwen2.attention.sliding_window", 4096); }, kModelUnsupported,
     "qwen2.attention.sliding_window: 4096", "qwen2"},
    {"qwen2_qk_norm", [](GgufImage& i) { i.AddVector("blk.0.attn_q_norm.weight", 32); }, kModelUnsupported,
     "tensor 'blk.0.attn_q_norm.weight': no part of a 1-layer model of architecture qwen2", "qwen2"},
    {"qwen2_output_bias", [](GgufImage& i) { i.AddVector("output.bias", 270); }, kModelUnsupported,
     "tensor 'output.bias': no part of", "qwen2"},
    {"qwen3_without_norm", [](GgufImage& i) { Rename(i, "blk.0.attn_k_norm.weight"); }, kCorruption,
     "tensor 'blk.0.attn_k_norm.weight' is missing", "qwen3"},
    {"qwen3_bias", [](GgufImage& i) { i.AddVector("blk.0.attn_q.bias", 64); }, kModelUnsupported,
     "tensor 'blk.0.attn_q.bias': no part of", "qwen3"},
    {"phi3_long_alone", [](GgufImage& i) { Rename(i, "rope_factors_short.weight"); }, kCorruption,
     "tensor 'rope_factors_short.weight' is missing", "phi3"},
    {"phi3_short_alone", [](GgufImage& i) { Rename(i, "rope_factors_long.weight"); }, kCorruption,
     "tensor 'rope_factors_long.weight' is missing", "phi3"},
    {"phi3_split", [](GgufImage& i) { i.TensorAt("blk.0.attn_qkv.weight").name = "blk.0.attn_q.weight"; }, kCorruption,
     "tensor 'blk.0.attn_qkv.weight' is missing", "phi3"},
    {"phi3_fused_bias", [](GgufImage& i) { i.AddVector("blk.0.attn_qkv.bias", 128); }, kModelUnsupported,
     "tensor 'blk.0.attn_qkv.bias': no part of", "phi3"},
    {"phi3_kv_heads", [](GgufImage& i) { i.SetU32("phi3.attention.head_count_kv", 2); }, kCorruption,
     "tensor 'blk.0.attn_qkv.weight': shape [64, 128], the hyper-parameters ask for [64, 192]", "phi3"},
    {"phi3_window_type", [](GgufImage& i) { i.SetF32("phi3.attention.sliding_window", 1); }, kCorruption,
     "phi3.attention.sliding_window: type f32, u32 is needed", "phi3"},
    {"phi3_rope_dims_odd", [](GgufImage& i) { i.SetU32("phi3.rope.dimension_count", 31); }, kModelUnsupported,
     "phi3.rope.dimension_count: 31", "phi3"},
    {"phi3_rope_dims_more", [](GgufImage& i) { i.SetU32("phi3.rope.dimension_count", 64); }, kModelUnsupported,
     "phi3.rope.dimension_count: 64", "phi3"},
    {"phi3_rope_dims_other", [](GgufImage& i) { i.SetU32("phi3.rope.dimension_count", 24); }, kCorruption,
     "tensor 'rope_factors_long.weight': shape [16, 1], the hyper-parameters ask for [12, 1]", "phi3"},
    {"phi3_attention_factor", [](GgufImage& i) { i.SetF32("phi3.rope.scaling.attn_factor", 0); }, kCorruption,
     "phi3.rope.scaling.attn_factor: 0", "phi3"},
    {"gemma2_window_0", [](GgufImage& i) { i.SetU32("gemma2.attention.sliding_window", 0); }, kCorruption,
     "gemma2.attention.sliding_window: 0 is outside 1", "gemma2"},
    {"gemma2_cap_0", [](GgufImage& i) { i.SetF32("gemma2.attn_logit_softcapping", 0); }, kCorruption,
     "gemma2.attn_logit_softcapping: 0", "gemma2"},
    {"gemma2_cap_nan", [](GgufImage& i) { i.SetF32("gemma2.final_logit_softcapping", NAN); }, kCorruption,
     "gemma2.final_logit_softcapping: nan", "gemma2"},
    {"gemma2_untied", [](GgufImage& i) { i.AddVector("output.weight", 64); }, kModelUnsupported,
     "tensor 'output.weight': no part of", "gemma2"},
    {"gemma2_without_post_norm", [](GgufImage& i) { Rename(i, "blk.0.post_ffw_norm.weight"); }, kCorruption,
     "tensor 'blk.0.post_ffw_norm.weight' is missing", "gemma2"},
    {"gemma2_qk_norm", [](GgufImage& i) { i.AddVector("blk.0.attn_q_norm.weight", 32); }, kModelUnsupported,
     "tensor 'blk.0.attn_q_norm.weight': no part of", "gemma2"},
    {"gemma3_attention_cap", [](GgufImage& i) { i.SetF32("gemma3.attn_logit_softcapping", 50); }, kModelUnsupported,
     "gemma3.attn_logit_softcapping: 50", "gemma3"},
    {"gemma3_pattern_of_numbers", [](GgufImage& i) { i.SetI32s("gemma3.attention.sliding_window_pattern", {1}); },
     kCorruption, "gemma3.attention.sliding_window_pattern: no array of bool", "gemma3"},
    {"gemma3_pattern_too_long", [](GgufImage& i) { i.SetU32("gemma3.attention.sliding_window_pattern", 513); },
     kCorruption, "gemma3.attention.sliding_window_pattern: 513 is outside 0 to 512", "gemma3"},
    {"gemma3_pattern_of_none", [](GgufImage& i) { i.SetU32("gemma3.attention.sliding_window_pattern", 1); },
     kCorruption, "gemma3.attention.sliding_window_pattern: no layer has the window of 16", "gemma3"},
    {"gemma3_window_base", [](GgufImage& i) { i.SetF32("gemma3.rope.freq_base_swa", -1); }, kCorruption,
     "gemma3.rope.freq_base_swa: -1", "gemma3"},
    {"gemma3_other_head_dim_in_windows", [](GgufImage& i) { i.SetU32("gemma3.attention.key_length_swa", 64); },
     kModelUnsupported, "gemma3.attention.key_length_swa: not supported", "gemma3"},
    {"gemma3_dense", [](GgufImage& i) { i.AddVector("dense_2.weight", 64); }, kModelUnsupported,
     "tensor 'dense_2.weight': no part of", "gemma3"},
};

class ArchitectureRefusalTest : public testing::TestWithParam<Refusal> {};
TEST_P(ArchitectureRefusalTest, IsRefused) { ExpectRefused(GetParam()); }
INSTANTIATE_TEST_SUITE_P(All, ArchitectureRefusalTest, testing::ValuesIn(kRefusals), RefusalName);

ModelParams ParamsOfImage(const GgufImage& image) {
  const test::TempFile file("params");
  file.Write(image.Bytes());
  const Result<GgufInfo> info = CheckGguf(file.path());
  EXPECT_TRUE(info.ok()) << info.status().message();
  return info.ok() ? info->params : ModelParams();
}

ModelParams ParamsOf(const test::TinyModelParams& tiny) {
  const test::TempFile file("params");
  EXPECT_TRUE(test::WriteTinyModel(tiny, file.path()).ok());
  const Result<GgufInfo> info = CheckGguf(file.path());
  EXPECT_TRUE(info.ok()) << info.status().message();
  return info.ok() ? info->params : ModelParams();
}

TEST(ArchitectureParamsTest, LayersWithAWindowFollowThePattern) {
  using Windows = std::vector<uint32_t>;
  EXPECT_EQ(ParamsOf({.architecture = "llama"}).windows, (Windows{0, 0}));
  EXPECT_EQ(ParamsOf({.architecture = "gemma2"}).windows, (Windows{4096, 0}));
  EXPECT_EQ(ParamsOf({.architecture = "gemma2", .window = 7, .window_pattern = 0}).windows, (Windows{7, 7}));
  EXPECT_EQ(ParamsOf({.architecture = "gemma3", .num_layers = 7, .window = 9}).windows, (Windows{9, 9, 9, 9, 9, 0, 9}));
  EXPECT_EQ(ParamsOf({.architecture = "gemma3"}).windows, (Windows{0, 0}));
  EXPECT_EQ(ParamsOf({.architecture = "gemma3", .window = 9, .window_layers = std::vector{false, true}}).windows,
            (Windows{0, 9}));
}

TEST(ArchitectureParamsTest, AListOfLayersOfAnotherLengthIsRefused) {
  const test::TempFile file("params");
  ASSERT_TRUE(
      test::WriteTinyModel({.architecture = "gemma3", .window = 9, .window_layers = std::vector{true}}, file.path())
          .ok());
  const Status status = CheckGguf(file.path()).status();
  EXPECT_EQ(status.code(), kCorruption);
  EXPECT_NE(status.message().find("sliding_window_pattern: 1 entries for 2 layers"), std::string::npos)
      << status.message();
}

TEST(ArchitectureParamsTest, PhisWindowIsIgnored) {
  GgufImage image = SmallImage("phi3");
  image.SetU32("phi3.attention.sliding_window", 2047);
  image.SetText("phi3.rope.scaling.type", "longrope");
  const ModelParams params = ParamsOfImage(image);
  EXPECT_EQ(params.windows, std::vector<uint32_t>{0});
  EXPECT_TRUE(params.rope.has_long_factors);
  EXPECT_EQ(params.rope.factor, 1.0F);
}

TEST(ArchitectureParamsTest, CapsAndScalesAreTheArchitectures) {
  const ModelParams gemma2 = ParamsOf({.architecture = "gemma2"});
  EXPECT_EQ(gemma2.attention_cap, 50.0F);
  EXPECT_EQ(gemma2.output_cap, 30.0F);
  EXPECT_EQ(gemma2.activation, Activation::kGelu);
  EXPECT_EQ(gemma2.embedding_scale, std::sqrt(128.0F));
  EXPECT_EQ(gemma2.query_scale, 1.0F / std::sqrt(32.0F));
  EXPECT_EQ(gemma2.rope.window_base, gemma2.rope.base);
  const ModelParams gemma3 =
      ParamsOf({.architecture = "gemma3", .scaling = test::TinyScaling::kLinear, .rope_base = 1e6F});
  EXPECT_EQ(gemma3.attention_cap, 0.0F);
  EXPECT_EQ(gemma3.output_cap, 0.0F);
  EXPECT_EQ(gemma3.rope.window_base, 10000.0F);
  EXPECT_EQ(gemma3.rope.window_factor, 1.0F);
  EXPECT_EQ(gemma3.rope.factor, 4.0F);
  const ModelParams llama = ParamsOf({});
  EXPECT_EQ(llama.attention_cap, 0.0F);
  EXPECT_EQ(llama.embedding_scale, 1.0F);
  EXPECT_EQ(llama.activation, Activation::kSilu);
}

// The 27B models are known by their number of layers.
TEST(ArchitectureParamsTest, TheLargeGemmasScaleQueriesByTheEmbeddingsShare) {
  const test::TinyModelParams large2{.architecture = "gemma2", .num_layers = 46, .head_dim = 64, .embedding = 128};
  EXPECT_EQ(ParamsOf(large2).query_scale, 1.0F / std::sqrt(32.0F));
  const test::TinyModelParams large3{.architecture = "gemma3", .num_layers = 62, .head_dim = 64, .embedding = 128};
  EXPECT_EQ(ParamsOf(large3).query_scale, 1.0F / std::sqrt(32.0F));
  const test::TinyModelParams other{.architecture = "gemma3", .num_layers = 3, .head_dim = 64, .embedding = 128};
  EXPECT_EQ(ParamsOf(other).query_scale, 1.0F / std::sqrt(64.0F));
}

}  // namespace
}  // namespace kvant::engine
