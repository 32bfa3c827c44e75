// Faults of a sound container: architecture, hyper-parameters, tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

using test::GgufImage;
using enum StatusCode;

const Refusal kRefusals[] = {
    {"no_architecture", [](GgufImage& i) { i.Remove("general.architecture"); }, kCorruption,
     "general.architecture: the key is missing"},
    {"architecture_type", [](GgufImage& i) { i.SetU32("general.architecture", 1); }, kCorruption,
     "general.architecture: type u32, str is needed"},
    {"other_architecture", [](GgufImage& i) { i.SetText("general.architecture", "mamba"); }, kModelUnsupported,
     "general.architecture: 'mamba' is not supported; llama, qwen2, qwen3, phi3, gemma2 and gemma3 are"},
    {"architecture_utf8", [](GgufImage& i) { i.SetText("general.architecture", "ll\xFFma"); }, kCorruption,
     "general.architecture: the text is not valid UTF-8"},
    {"name_type", [](GgufImage& i) { i.SetU32("general.name", 1); }, kCorruption, "general.name: type u32"},
    {"file_type_beyond", [](GgufImage& i) { i.SetU32("general.file_type", 1025); }, kModelUnsupported,
     "general.file_type: 1025"},
    {"file_type_type", [](GgufImage& i) { i.SetI32("general.file_type", 0); }, kCorruption, "general.file_type: type"},
    {"one_of_many_parts",
     [](GgufImage& i) {
       i.At("split.count").type = 2;
       i.At("split.count").payload = std::string("\x02\0", 2);
     },
     kModelUnsupported, "split.count: one part of 2"},
    {"compute_hints", [](GgufImage& i) { i.SetTexts("general.tensor_extra.name", {"x"}); }, kModelUnsupported,
     "general.tensor_extra.name"},

    {"no_layers", [](GgufImage& i) { i.SetU32("llama.block_count", 0); }, kCorruption,
     "llama.block_count: 0 is outside"},
    {"too_many_layers", [](GgufImage& i) { i.SetU32("llama.block_count", 513); }, kCorruption,
     "llama.block_count: 513 is outside 1 to 512"},
    {"layers_missing", [](GgufImage& i) { i.Remove("llama.block_count"); }, kCorruption,
     "llama.block_count: the key is missing"},
    {"layers_type", [](GgufImage& i) { i.SetI32("llama.block_count", 1); }, kCorruption,
     "llama.block_count: type i32, u32 is needed (byte "},
    {"one_layer_more", [](GgufImage& i) { i.SetU32("llama.block_count", 2); }, kCorruption,
     "tensor 'blk.1.attn_norm.weight' is missing"},
    {"context_0", [](GgufImage& i) { i.SetU32("llama.context_length", 0); }, kCorruption, "llama.context_length: 0"},
    {"embedding_max", [](GgufImage& i) { i.SetU32("llama.embedding_length", UINT32_MAX); }, kCorruption,
     "llama.embedding_length: 4294967295 is outside"},
    {"embedding_other", [](GgufImage& i) { i.SetU32("llama.embedding_length", 72); }, kModelUnsupported,
     "llama.rope.dimension_count: 32, but the head size is 36"},
    {"feed_forward_missing", [](GgufImage& i) { i.Remove("llama.feed_forward_length"); }, kCorruption,
     "llama.feed_forward_length: the key is missing"},
    {"feed_forward_other", [](GgufImage& i) { i.SetU32("llama.feed_forward_length", 128); }, kCorruption,
     "tensor 'blk.0.ffn_down.weight': shape [64, 64], the hyper-parameters ask for [128, 64] (byte "},
    {"heads_0", [](GgufImage& i) { i.SetU32("llama.attention.head_count", 0); }, kCorruption,
     "llama.attention.head_count: 0 is outside"},
    {"heads_per_layer", [](GgufImage& i) { i.SetI32s("llama.attention.head_count", {2}); }, kCorruption,
     "llama.attention.head_count: type arr"},
    {"kv_heads_0", [](GgufImage& i) { i.SetU32("llama.attention.head_count_kv", 0); }, kCorruption,
     "llama.attention.head_count_kv: 0 is outside"},
    {"five_over_two",
     [](GgufImage& i) {
       i.SetU32("llama.attention.head_count", 5);
       i.SetU32("llama.attention.head_count_kv", 2);
     },
     kCorruption, "llama.attention.head_count_kv: 2 KV heads do not divide 5 query heads (byte "},
    {"heads_do_not_divide",
     [](GgufImage& i) {
       i.SetU32("llama.attention.head_count", 3);
       i.Remove("llama.attention.head_count_kv");
     },
     kCorruption, "llama.attention.head_count: 3 heads do not divide the embedding length 64"},
    {"key_length_odd", [](GgufImage& i) { i.SetU32("llama.attention.key_length", 31); }, kModelUnsupported,
     "head size 31"},
    {"key_length_alone", [](GgufImage& i) { i.SetU32("llama.attention.key_length", 64); }, kModelUnsupported,
     "llama.attention.value_length: 32, but the head size is 64"},
    {"value_length_other", [](GgufImage& i) { i.SetU32("llama.attention.value_length", 16); }, kModelUnsupported,
     "llama.attention.value_length: 16, but the head size is 32"},
    {"rope_dims_odd", [](GgufImage& i) { i.SetU32("llama.rope.dimension_count", 31); }, kModelUnsupported,
     "llama.rope.dimension_count: 31"},
    {"rope_dims_partial", [](GgufImage& i) { i.SetU32("llama.rope.dimension_count", 16); }, kModelUnsupported,
     "llama.rope.dimension_count: 16"},
    {"epsilon_missing", [](GgufImage& i) { i.Remove("llama.attention.layer_norm_rms_epsilon"); }, kCorruption,
     "llama.attention.layer_norm_rms_epsilon: the key is missing"},
    {"epsilon_0", [](GgufImage& i) { i.SetF32("llama.attention.layer_norm_rms_epsilon", 0); }, kCorruption,
     "llama.attention.layer_norm_rms_epsilon: 0.0"},
    {"epsilon_nan", [](GgufImage& i) { i.SetF32("llama.attention.layer_norm_rms_epsilon", NAN); }, kCorruption,
     "llama.attention.layer_norm_rms_epsilon: nan"},
    {"epsilon_negative", [](GgufImage& i) { i.SetF32("llama.attention.layer_norm_rms_epsilon", -1e-5F); }, kCorruption,
     "llama.attention.layer_norm_rms_epsilon: -0.00001"},
    {"rope_base_infinite",
     [](GgufImage& i) { i.SetF32("llama.rope.freq_base", std::numeric_limits<float>::infinity()); }, kCorruption,
     "llama.rope.freq_base: inf"},
    {"rope_base_0", [](GgufImage& i) { i.SetF32("llama.rope.freq_base", 0); }, kCorruption, "llama.rope.freq_base: 0"},
    {"scaling_unknown", [](GgufImage& i) { i.SetText("llama.rope.scaling.type", "dynamic"); }, kModelUnsupported,
     "llama.rope.scaling.type: 'dynamic' is not supported; none, linear and yarn are"},
    {"scaling_longrope", [](GgufImage& i) { i.SetText("llama.rope.scaling.type", "longrope"); }, kModelUnsupported,
     "llama.rope.scaling.type: 'longrope'"},
    {"scaling_factor_0", [](GgufImage& i) { i.SetF32("llama.rope.scaling.factor", 0); }, kCorruption,
     "llama.rope.scaling.factor: 0"},
    {"scaling_factor_nan", [](GgufImage& i) { i.SetF32("llama.rope.scaling.factor", NAN); }, kCorruption,
     "llama.rope.scaling.factor: nan"},
    {"scaling_finetuned_type", [](GgufImage& i) { i.SetU32("llama.rope.scaling.finetuned", 1); }, kCorruption,
     "llama.rope.scaling.finetuned: type u32, bool is needed"},
    {"vocab_size_other", [](GgufImage& i) { i.SetU32("llama.vocab_size", 271); }, kCorruption,
     "llama.vocab_size: 271, but the tokenizer has 270 tokens"},
    {"experts", [](GgufImage& i) { i.SetU32("llama.expert_count", 8); }, kModelUnsupported, "llama.expert_count: 8"},
    {"experts_per_layer", [](GgufImage& i) { i.SetI32s("llama.expert_used_count", {2}); }, kCorruption,
     "llama.expert_used_count: type arr"},
    {"prediction_layers", [](GgufImage& i) { i.SetU32("llama.nextn_predict_layers", 1); }, kModelUnsupported,
     "llama.nextn_predict_layers: 1"},
    {"not_causal", [](GgufImage& i) { i.SetBool("llama.attention.causal", 0); }, kModelUnsupported,
     "llama.attention.causal: 0"},
    {"sliding_window", [](GgufImage& i) { i.SetU32("llama.attention.sliding_window", 128); }, kModelUnsupported,
     "llama.attention.sliding_window: 128"},
    {"attention_scale", [](GgufImage& i) { i.SetF32("llama.attention.scale", 0.1F); }, kModelUnsupported,
     "llama.attention.scale: 0.1"},
    {"window_head_dim", [](GgufImage& i) { i.SetU32("llama.attention.key_length_swa", 16); }, kModelUnsupported,
     "llama.attention.key_length_swa: not supported"},

    {"tensor_missing", [](GgufImage& i) { i.TensorAt("output_norm.weight").name += "x"; }, kCorruption,
     "tensor 'output_norm.weight' is missing"},
    {"tensor_unknown", [](GgufImage& i) { i.AddVector("blk.0.attn_q.bias", 1); }, kModelUnsupported,
     "tensor 'blk.0.attn_q.bias': no part of a 1-layer model of architecture llama"},
    {"tensor_layer_beyond", [](GgufImage& i) { i.AddVector("blk.1.attn_norm.weight", 1); }, kModelUnsupported,
     "tensor 'blk.1.attn_norm.weight': no part of"},
    {"shape_turned",
     [](GgufImage& i) {
       std::swap(i.TensorAt("blk.0.attn_k.weight").shape[0], i.TensorAt("blk.0.attn_k.weight").shape[1]);
     },
     kCorruption, "tensor 'blk.0.attn_k.weight': shape [32, 64], the hyper-parameters ask for [64, 32]"},
    {"shape_of_three",
     [](GgufImage& i) {
       i.TensorAt("blk.0.attn_k.weight").shape = {64, 16, 2};
     },
     kCorruption, "tensor 'blk.0.attn_k.weight': shape [64, 16] and more dimensions"},
    {"rope_freqs_length", [](GgufImage& i) { i.AddVector("rope_freqs.weight", 1); }, kCorruption,
     "tensor 'rope_freqs.weight': shape [1, 1], the hyper-parameters ask for [16, 1]"},
    {"norm_of_i32", [](GgufImage& i) { i.TensorAt("output_norm.weight").type = 26; }, kModelUnsupported,
     "tensor 'output_norm.weight': type i32 cannot be used for a vector, only f32"},
    {"matrix_of_i32", [](GgufImage& i) { i.TensorAt("blk.0.attn_q.weight").type = 26; }, kModelUnsupported,
     "tensor 'blk.0.attn_q.weight': type i32 cannot be used for a matrix"},
};

class ModelTest : public testing::TestWithParam<Refusal> {};
TEST_P(ModelTest, IsRefused) { ExpectRefused(GetParam()); }
INSTANTIATE_TEST_SUITE_P(All, ModelTest, testing::ValuesIn(kRefusals), RefusalName);

TEST(ModelOptionTest, NeutralValuesAndUnknownKeysPass) {
  GgufImage image = SmallImage();
  image.SetU32("llama.expert_count", 0);
  image.SetBool("llama.attention.causal", 1);
  image.SetF32("llama.rope.scaling.yarn_beta_fast", 32.0F);
  image.SetU32("llama.something_new", 7);
  image.SetText("tool.note", "anything");
  image.SetF32("llama.rope.scale_linear", 1.0F);
  EXPECT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
}

TEST(ModelOptionTest, OptionalKeysMayBeAbsent) {
  GgufImage image = SmallImage();
  for (const char* key : {"general.name", "general.file_type", "llama.vocab_size", "llama.rope.dimension_count",
                          "llama.rope.freq_base", "tokenizer.chat_template", "tokenizer.ggml.add_bos_token"}) {
    image.Remove(key);
  }
  EXPECT_TRUE(CheckImage(image).ok()) << CheckImage(image).message();
}

}  // namespace
}  // namespace kvant::engine
