#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/precision.h"
#include "kvant/engine/gguf_check.h"

struct ggml_tensor;

namespace kvant::engine {

/// Weights of one layer, ggml tensors over the mapped file. Shapes as ggml has them: [inputs, outputs].
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;
  ggml_tensor* attn_q = nullptr;
  ggml_tensor* attn_k = nullptr;
  ggml_tensor* attn_v = nullptr;
  ggml_tensor* attn_output = nullptr;
  ggml_tensor* ffn_norm = nullptr;
  ggml_tensor* ffn_gate = nullptr;
  ggml_tensor* ffn_up = nullptr;
  ggml_tensor* ffn_down = nullptr;
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
  ggml_tensor* rope_freq_factors() const { return rope_freq_factors_; }  ///< or null

 private:
  struct Mapping;
  Model() = default;
  Status MapTensors();
  ggml_tensor* Find(const std::string& name) const;

  std::string path_;
  GgufInfo info_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<Mapping> mapping_;
  std::vector<LayerWeights> layers_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* rope_freq_factors_ = nullptr;
};

}  // namespace kvant::engine
