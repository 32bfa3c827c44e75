#include "engine/gguf/gguf_architecture.h"

namespace kvant::engine {
namespace {

using enum TensorDim;

// Llama 1 to 3, Mistral, SmolLM: RMS norms, grouped queries, SwiGLU, no biases.
constexpr TensorRule kLlamaTensors[] = {
    {"token_embd.weight", false, true, kEmbedding, kVocab},     {"output_norm.weight", false, true, kEmbedding, kOne},
    {"output.weight", false, false, kEmbedding, kVocab},        {"rope_freqs.weight", false, false, kRopePairs, kOne},
    {"attn_norm.weight", true, true, kEmbedding, kOne},         {"attn_q.weight", true, true, kEmbedding, kQueryRows},
    {"attn_k.weight", true, true, kEmbedding, kKvRows},         {"attn_v.weight", true, true, kEmbedding, kKvRows},
    {"attn_output.weight", true, true, kQueryRows, kEmbedding}, {"ffn_norm.weight", true, true, kEmbedding, kOne},
    {"ffn_gate.weight", true, true, kEmbedding, kFeedForward},  {"ffn_up.weight", true, true, kEmbedding, kFeedForward},
    {"ffn_down.weight", true, true, kFeedForward, kEmbedding},
};
constexpr NeutralKey kLlamaNeutral[] = {
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
    {"attention.sliding_window", GgufType::kU32, 0},
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
constexpr std::string_view kLlamaForbidden[] = {
    "attention.key_length_swa", "attention.value_length_swa", "attention.sliding_window_pattern",
    "rope.dimension_count_swa", "rope.freq_base_swa",         "rope.dimension_sections",
    "classifier.output_labels", "classifier.pooling_type",
};

constexpr ArchitectureRule kArchitectures[] = {
    {"llama", RopeLayout::kInterleaved, kLlamaTensors, kLlamaNeutral, kLlamaForbidden},
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

std::string_view ArchitectureNames() { return "llama"; }

}  // namespace kvant::engine
