#include "engine/gguf/gguf_architecture.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace kvant::engine {
namespace {

using enum TensorDim;

// What all have: RMS norms, grouped queries, a gated feed-forward network.
constexpr TensorRule kCommonTensors[] = {
    {"token_embd.weight", false, true, kEmbedding, kVocab}, {"output_norm.weight", false, true, kEmbedding, kOne},
    {"attn_norm.weight", true, true, kEmbedding, kOne},     {"attn_output.weight", true, true, kQueryRows, kEmbedding},
    {"ffn_norm.weight", true, true, kEmbedding, kOne},      {"ffn_down.weight", true, true, kFeedForward, kEmbedding},
};
constexpr TensorRule kOutput[] = {{"output.weight", false, false, kEmbedding, kVocab}};
constexpr TensorRule kSplitTensors[] = {
    {"attn_q.weight", true, true, kEmbedding, kQueryRows},   {"attn_k.weight", true, true, kEmbedding, kKvRows},
    {"attn_v.weight", true, true, kEmbedding, kKvRows},      {"ffn_gate.weight", true, true, kEmbedding, kFeedForward},
    {"ffn_up.weight", true, true, kEmbedding, kFeedForward},
};
constexpr TensorRule kFusedTensors[] = {
    {"attn_qkv.weight", true, true, kEmbedding, kQkvRows},
    {"ffn_up.weight", true, true, kEmbedding, kFeedForwardTwice},
};
constexpr TensorRule kQkvBiases[] = {
    {"attn_q.bias", true, false, kQueryRows, kOne},
    {"attn_k.bias", true, false, kKvRows, kOne},
    {"attn_v.bias", true, false, kKvRows, kOne},
};
constexpr TensorRule kQkNorms[] = {
    {"attn_q_norm.weight", true, true, kHeadDim, kOne},
    {"attn_k_norm.weight", true, true, kHeadDim, kOne},
};
constexpr TensorRule kPostNorms[] = {
    {"post_attention_norm.weight", true, true, kEmbedding, kOne},
    {"post_ffw_norm.weight", true, true, kEmbedding, kOne},
};
constexpr TensorRule kRopeFreqs[] = {{"rope_freqs.weight", false, false, kRopePairs, kOne}};
constexpr TensorRule kLongRope[] = {
    {"rope_factors_long.weight", false, false, kRopePairs, kOne},
    {"rope_factors_short.weight", false, false, kRopePairs, kOne},
};

constexpr NeutralKey kCommonNeutral[] = {
    {"expert_count", GgufType::kU32, 0},
    {"expert_used_count", GgufType::kU32, 0},
    {"expert_group_count", GgufType::kU32, 0},
    {"expert_group_used_count", GgufType::kU32, 0},
    {"nextn_predict_layers", GgufType::kU32, 0},
    {"embedding_length_out", GgufType::kU32, 0},
    {"pooling_type", GgufType::kU32, 0},
    {"attention.causal", GgufType::kBool, 1},
    {"attention.scale", GgufType::kF32, 0},
    {"attention.clamp_kqv", GgufType::kF32, 0},
    {"attention.max_alibi_bias", GgufType::kF32, 0},
    {"logit_scale", GgufType::kF32, 0},
    {"residual_scale", GgufType::kF32, 0},
    {"embedding_scale", GgufType::kF32, 0},
    {"rope.scaling.alpha", GgufType::kF32, 0},
    {"rope.scaling.yarn_log_multiplier", GgufType::kF32, 0},
    {"rope.scaling.yarn_ext_factor", GgufType::kF32, 1},
    {"rope.scaling.yarn_attn_factor", GgufType::kF32, 1},
    {"rope.scaling.yarn_beta_fast", GgufType::kF32, 32},
    {"rope.scaling.yarn_beta_slow", GgufType::kF32, 1},
};
constexpr NeutralKey kNoWindow[] = {{"attention.sliding_window", GgufType::kU32, 0}};
constexpr NeutralKey kNoCaps[] = {
    {"attn_logit_softcapping", GgufType::kF32, 0},
    {"final_logit_softcapping", GgufType::kF32, 0},
};
constexpr NeutralKey kNoAttentionCap[] = {{"attn_logit_softcapping", GgufType::kF32, 0}};
constexpr std::string_view kWithWindows[] = {
    "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa",
    "rope.dimension_sections",  "classifier.output_labels",   "classifier.pooling_type",
};
constexpr std::string_view kWithoutWindows[] = {
    "attention.key_length_swa", "attention.value_length_swa", "attention.sliding_window_pattern",
    "rope.dimension_count_swa", "rope.freq_base_swa",         "rope.dimension_sections",
    "classifier.output_labels", "classifier.pooling_type",
};

constexpr ArchitectureRule kArchitectures[] = {
    // Llama 1 to 3, Mistral, SmolLM.
    {.name = "llama",
     .layout = RopeLayout::kInterleaved,
     .own_head_dim = true,
     .partial_rope = false,
     .long_rope = false,
     .ignores_window = false,
     .tensors = {kCommonTensors, kOutput, kSplitTensors, kRopeFreqs},
     .neutral = {kCommonNeutral, kNoWindow, kNoCaps},
     .forbidden = kWithoutWindows},
    // Qwen2 and 2.5, and what was distilled into them.
    {.name = "qwen2",
     .layout = RopeLayout::kHalves,
     .own_head_dim = false,
     .partial_rope = false,
     .long_rope = false,
     .ignores_window = false,
     .tensors = {kCommonTensors, kOutput, kSplitTensors, kQkvBiases},
     .neutral = {kCommonNeutral, kNoWindow, kNoCaps},
     .forbidden = kWithoutWindows},
    {.name = "qwen3",
     .layout = RopeLayout::kHalves,
     .own_head_dim = true,
     .partial_rope = false,
     .long_rope = false,
     .ignores_window = false,
     .tensors = {kCommonTensors, kOutput, kSplitTensors, kQkNorms},
     .neutral = {kCommonNeutral, kNoWindow, kNoCaps},
     .forbidden = kWithoutWindows},
    // Phi-3, 3.5 and 4. Its window is off in libllama, too.
    {.name = "phi3",
     .layout = RopeLayout::kHalves,
     .own_head_dim = false,
     .partial_rope = true,
     .long_rope = true,
     .ignores_window = true,
     .tensors = {kCommonTensors, kOutput, kFusedTensors, kLongRope},
     .neutral = {kCommonNeutral, kNoCaps},
     .forbidden = kWithoutWindows},
    {.name = "gemma2",
     .layout = RopeLayout::kHalves,
     .own_head_dim = true,
     .partial_rope = false,
     .long_rope = false,
     .ignores_window = false,
     .tensors = {kCommonTensors, kSplitTensors, kPostNorms},
     .neutral = {kCommonNeutral},
     .forbidden = kWithWindows,
     .activation = Activation::kGelu,
     .scaled_embedding = true,
     .wide_query_layers = 46,  // the 27B
     .attention_cap = 50.0F,
     .output_cap = 30.0F,
     .windows = WindowDefaults{.tokens = 4096, .pattern = 2, .own_rope = false}},
    {.name = "gemma3",
     .layout = RopeLayout::kHalves,
     .own_head_dim = true,
     .partial_rope = false,
     .long_rope = false,
     .ignores_window = false,
     .tensors = {kCommonTensors, kOutput, kSplitTensors, kQkNorms, kPostNorms},
     .neutral = {kCommonNeutral, kNoAttentionCap},
     .forbidden = kWithWindows,
     .activation = Activation::kGelu,
     .scaled_embedding = true,
     .wide_query_layers = 62,  // the 27B
     .output_cap = 0.0F,
     .windows = WindowDefaults{.tokens = 0, .pattern = 6, .own_rope = true}},
};

}  // namespace

const ArchitectureRule* FindArchitecture(std::string_view name) {
  for (const ArchitectureRule& rule : kArchitectures) {
    if (rule.name == name) {
      return &rule;
    }
  }
  return nullptr;
}

std::string ArchitectureNames() {
  std::string text;
  const std::vector<std::string_view> names = SupportedArchitectures();
  for (const std::string_view name : names) {
    text.append(text.empty() ? "" : name == names.back() ? " and " : ", ").append(name);
  }
  return text;
}

std::vector<std::string_view> SupportedArchitectures() {
  std::vector<std::string_view> names;
  std::transform(std::begin(kArchitectures), std::end(kArchitectures), std::back_inserter(names),
                 [](const ArchitectureRule& rule) { return rule.name; });
  return names;
}

}  // namespace kvant::engine
