#include "engine/graph.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>

#include "kvant/base/check.h"

namespace kvant::engine {
namespace {

constexpr size_t kMaxNodes = 16384;  // a layer takes about 30

}  // namespace

Graph::Graph(Backend* backend)
    : backend_(backend),
      arena_(ggml_tensor_overhead() * kMaxNodes + ggml_graph_overhead_custom(kMaxNodes, false)),
      allocator_(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend->handle()))) {}

Graph::~Graph() {
  ggml_gallocr_free(allocator_);
  ggml_free(ctx_);
}

ggml_context* Graph::Begin() {
  ggml_free(ctx_);
  ctx_ = ggml_init({.mem_size = arena_.size(), .mem_buffer = arena_.data(), .no_alloc = true});
  KVANT_CHECK(ctx_ != nullptr, "the arena is sized for the largest graph");
  graph_ = ggml_new_graph_custom(ctx_, kMaxNodes, false);
  return ctx_;
}

ggml_tensor* Graph::NewInput(int type, int64_t ne0, int64_t ne1) {
  ggml_tensor* input = ggml_new_tensor_2d(ctx_, static_cast<ggml_type>(type), ne0, ne1);
  ggml_set_input(input);
  return input;
}

void Graph::AddResult(ggml_tensor* result) {
  ggml_set_output(result);
  ggml_build_forward_expand(graph_, result);
}

Status Graph::Finish() {
  if (!ggml_gallocr_alloc_graph(allocator_, graph_)) {
    return {StatusCode::kOutOfMemory, "no memory for the activations of a step: " + TakeGgmlError()};
  }
  return OkStatus();
}

Status Graph::Compute() { return backend_->Compute(graph_); }

uint64_t Graph::compute_bytes() const { return ggml_gallocr_get_buffer_size(allocator_, 0); }

GraphBuilder::GraphBuilder(const Model& model, uint32_t context_tokens)
    : model_(model), rope_freq_factors_(model.rope_freq_factors(context_tokens)) {
  const RopeParams& rope = model.params().rope;
  if (rope.scaling == RopeScaling::kYarn) {
    yarn_ext_factor_ = 1.0F;
  }
  // ggml multiplies YaRN's magnitude correction 1 + 0.1 ln(factor) in by itself; the file's factor comes on top.
  yarn_attn_factor_ = rope.attn_factor;
}

ggml_tensor* GraphBuilder::Embed(ggml_context* ctx, ggml_tensor* tokens) const {
  ggml_tensor* rows = ggml_get_rows(ctx, model_.token_embedding(), tokens);
  const float scale = model_.params().embedding_scale;
  return scale == 1.0F ? rows : ggml_scale(ctx, rows, scale);
}

ggml_tensor* GraphBuilder::Norm(ggml_context* ctx, ggml_tensor* hidden, ggml_tensor* weight) const {
  return ggml_mul(ctx, ggml_rms_norm(ctx, hidden, model_.params().rms_epsilon), weight);
}

ggml_tensor* GraphBuilder::NormIf(ggml_context* ctx, ggml_tensor* rows, ggml_tensor* weight) const {
  return weight == nullptr ? rows : Norm(ctx, rows, weight);
}

ggml_tensor* GraphBuilder::Rope(ggml_context* ctx, uint32_t layer, ggml_tensor* rows, ggml_tensor* positions) const {
  constexpr float kBetaFast = 32.0F;  // YaRN's, as in its paper and in libllama
  constexpr float kBetaSlow = 1.0F;
  const RopeParams& rope = model_.params().rope;
  const bool windowed = model_.params().windows[layer] > 0;
  const float base = windowed ? rope.window_base : rope.base;
  const float factor = windowed ? rope.window_factor : rope.factor;
  const int mode = rope.layout == RopeLayout::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return ggml_rope_ext(ctx, rows, positions, rope_freq_factors_, static_cast<int>(rope.dims), mode,
                       static_cast<int>(rope.original_context), base, 1.0F / factor, yarn_ext_factor_,
                       yarn_attn_factor_, kBetaFast, kBetaSlow);
}

Qkv GraphBuilder::AttentionInputs(ggml_context* ctx, uint32_t layer, ggml_tensor* hidden,
                                  ggml_tensor* positions) const {
  const ModelParams& params = model_.params();
  const LayerWeights& weights = model_.layers()[layer];
  ggml_tensor* input = Norm(ctx, hidden, weights.attn_norm);
  const auto project = [&](ggml_tensor* matrix, ggml_tensor* bias, uint32_t heads) {
    ggml_tensor* rows = ggml_mul_mat(ctx, matrix, input);
    rows = bias == nullptr ? rows : ggml_add(ctx, rows, bias);
    return ggml_reshape_3d(ctx, rows, params.head_dim, heads, hidden->ne[1]);
  };
  const auto turned = [&](ggml_tensor* rows, ggml_tensor* norm) {
    return Rope(ctx, layer, NormIf(ctx, rows, norm), positions);
  };
  ggml_tensor* q = project(weights.attn_q, weights.attn_q_bias, params.num_q_heads);
  ggml_tensor* k = project(weights.attn_k, weights.attn_k_bias, params.num_kv_heads);
  ggml_tensor* v = project(weights.attn_v, weights.attn_v_bias, params.num_kv_heads);
  return {turned(q, weights.attn_q_norm), turned(k, weights.attn_k_norm), v};
}

ggml_tensor* GraphBuilder::AfterAttention(ggml_context* ctx, uint32_t layer, ggml_tensor* attended,
                                          ggml_tensor* hidden) const {
  const LayerWeights& weights = model_.layers()[layer];
  ggml_tensor* added = NormIf(ctx, ggml_mul_mat(ctx, weights.attn_output, attended), weights.attn_post_norm);
  ggml_tensor* middle = ggml_add(ctx, added, hidden);
  ggml_tensor* input = Norm(ctx, middle, weights.ffn_norm);
  ggml_tensor* gate = ggml_mul_mat(ctx, weights.ffn_gate, input);
  ggml_tensor* up = ggml_mul_mat(ctx, weights.ffn_up, input);
  ggml_tensor* inner = model_.params().activation == Activation::kGelu ? ggml_geglu_split(ctx, gate, up)
                                                                       : ggml_swiglu_split(ctx, gate, up);
  ggml_tensor* down = NormIf(ctx, ggml_mul_mat(ctx, weights.ffn_down, inner), weights.ffn_post_norm);
  return ggml_add(ctx, down, middle);
}

ggml_tensor* GraphBuilder::Logits(ggml_context* ctx, ggml_tensor* hidden) const {
  ggml_tensor* logits = ggml_mul_mat(ctx, model_.output(), Norm(ctx, hidden, model_.output_norm()));
  const float cap = model_.params().output_cap;
  return cap == 0.0F ? logits : ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, logits, 1.0F / cap)), cap);
}

}  // namespace kvant::engine
