#pragma once

#include <memory>
#include <vector>

#include "engine/attention_op.h"
#include "kvant/base/status.h"
#include "kvant/engine/backend.h"
#include "kvant/engine/model.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_gallocr;
struct ggml_tensor;

namespace kvant::engine {

/// One ggml graph and the memory it computes in; rebuilt in place.
class Graph {
 public:
  explicit Graph(Backend* backend);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Forget the last graph and start another. Its compute memory is kept for reuse.
  ggml_context* Begin();
  /// An input [ne0] or [ne0, ne1] that Compute will read; fill it with SetInput after Finish.
  ggml_tensor* NewInput(int type, int64_t ne0, int64_t ne1 = 1);
  /// `result` is computed, and its memory is left alone until the next Begin.
  void AddResult(ggml_tensor* result);
  /// Give every tensor its memory.
  Status Finish();
  Status Compute();
  uint64_t compute_bytes() const;

 private:
  Backend* backend_;
  std::vector<std::byte> arena_;
  ggml_context* ctx_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_gallocr* allocator_;
};

/// The decoder, piece by piece. Hidden states are [embedding, rows] fp32, positions [rows] int32.
class GraphBuilder {
 public:
  /// For an engine of that many tokens.
  GraphBuilder(const Model& model, uint32_t context_tokens);

  ggml_tensor* Embed(ggml_context* ctx, ggml_tensor* tokens) const;
  Qkv AttentionInputs(ggml_context* ctx, uint32_t layer, ggml_tensor* hidden, ggml_tensor* positions) const;
  /// What follows attention: output projection, residual, feed-forward, residual.
  ggml_tensor* AfterAttention(ggml_context* ctx, uint32_t layer, ggml_tensor* attended, ggml_tensor* hidden) const;
  ggml_tensor* Logits(ggml_context* ctx, ggml_tensor* hidden) const;

 private:
  ggml_tensor* Norm(ggml_context* ctx, ggml_tensor* hidden, ggml_tensor* weight) const;
  ggml_tensor* NormIf(ggml_context* ctx, ggml_tensor* rows, ggml_tensor* weight) const;  ///< weight may be null
  ggml_tensor* Rope(ggml_context* ctx, uint32_t layer, ggml_tensor* rows, ggml_tensor* positions) const;

  const Model& model_;
  ggml_tensor* rope_freq_factors_;
  float yarn_ext_factor_ = 0.0F;
  float yarn_attn_factor_ = 1.0F;
};

}  // namespace kvant::engine
