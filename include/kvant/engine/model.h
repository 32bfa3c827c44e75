#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/precision.h"
#include "kvant/engine/gguf_check.h"

struct ggml_tensor;

namespace kvant::engine {

/// Weights of one layer, ggml tensors over the mapped file. Shapes as ggml has them: [inputs, outputs]. Matrices that
/// a file holds fused are row ranges of the one it has. Null: the architecture, or this file, has none.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;
  ggml_tensor* attn_q = nullptr;
  ggml_tensor* attn_k = nullptr;
  ggml_tensor* attn_v = nullptr;
  ggml_tensor* attn_q_bias = nullptr;  ///< of the outputs, as the other biases
  ggml_tensor* attn_k_bias = nullptr;
  ggml_tensor* attn_v_bias = nullptr;
  ggml_tensor* attn_q_norm = nullptr;  ///< [head_dim], of every head, before RoPE
  ggml_tensor* attn_k_norm = nullptr;
  ggml_tensor* attn_output = nullptr;
  ggml_tensor* attn_post_norm = nullptr;  ///< of what attention adds, before the residual
  ggml_tensor* ffn_norm = nullptr;
  ggml_tensor* ffn_gate = nullptr;
  ggml_tensor* ffn_up = nullptr;
  ggml_tensor* ffn_down = nullptr;
  ggml_tensor* ffn_post_norm = nullptr;
};

/// A model file, checked, mapped and named. Weights are read from the page cache, never copied.
///
/// Threads  immutable after Load
class Model {
 public:
  /// Errors  everything CheckGguf says; kIoError when the file cannot be mapped
  static Result<std::unique_ptr<Model>> Load(const std::string& path);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::string& path() const { return path_; }
  const GgufInfo& info() const { return info_; }
  const ModelParams& params() const { return info_.params; }
  codec::CacheShape cache_shape() const {
    return {info_.params.num_layers, info_.params.num_kv_heads, info_.params.head_dim};
  }

  /// Of the header and of samples of every tensor's data (both ends): quick also for files of many gigabytes.
  uint64_t fingerprint() const { return fingerprint_; }

  const std::vector<LayerWeights>& layers() const { return layers_; }
  ggml_tensor* token_embedding() const { return token_embedding_; }
  ggml_tensor* output_norm() const { return output_norm_; }
  ggml_tensor* output() const { return output_; }  ///< token_embedding() where the embeddings are tied
  /// Divisors of each RoPE pair's frequency in an engine of that many tokens, or null.
  ggml_tensor* rope_freq_factors(uint32_t context_tokens) const;

 private:
  struct Mapping;
  Model() = default;
  Status MapTensors();
  LayerWeights MapLayer(uint32_t layer) const;
  ggml_tensor* Find(const std::string& name) const;
  ggml_tensor* FindOptional(const std::string& name) const;  ///< or null
  /// Rows [first, first + count) of a matrix, as a matrix of its own.
  ggml_tensor* Rows(ggml_tensor* matrix, uint64_t first, uint64_t count) const;

  std::string path_;
  GgufInfo info_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<Mapping> mapping_;
  std::vector<LayerWeights> layers_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
};

}  // namespace kvant::engine
