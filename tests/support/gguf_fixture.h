#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::test {

/// A real model for tests: $KVANT_TEST_MODEL, or the installed default one; nothing where neither is there.
std::optional<std::string> FindTestModel();
inline constexpr const char* kNoTestModel = "no model: set KVANT_TEST_MODEL or run scripts/setup.sh";

/// How RoPE's angles of a tiny model are scaled. kLlama3 writes `rope_freqs.weight`, kLongRope `rope_factors_*.weight`
/// and an attention factor.
enum class TinyScaling { kNone, kLinear, kYarn, kLlama3, kLongRope };

/// A model with random weights in f32 and a byte-level BPE tokenizer: any text has tokens. A tensor's values depend on
/// its name, its shape and the seed alone, so two architectures share the tensors that both have.
struct TinyModelParams {
  std::string architecture = "llama";
  uint32_t num_layers = 2;
  uint32_t num_q_heads = 4;
  uint32_t num_kv_heads = 2;
  uint32_t head_dim = 32;
  uint32_t embedding = 0;  ///< 0: num_q_heads * head_dim; another one writes key_length and value_length
  uint32_t rope_dims = 0;  ///< 0: head_dim
  uint32_t feed_forward = 192;
  uint32_t vocab_size = 300;  ///< at least kMinTinyVocab
  uint32_t context_length = 512;
  TinyScaling scaling = TinyScaling::kNone;
  float scaling_factor = 4.0F;
  float rope_base = 10000.0F;
  bool qkv_bias = true;  ///< where the architecture has one
  uint32_t window = 0;   ///< 0: no key
  std::optional<uint32_t> window_pattern;
  std::optional<std::vector<bool>> window_layers;  ///< the pattern as an array
  std::optional<float> window_base;
  float attention_cap = 0.0F;  ///< 0: no key
  float output_cap = 0.0F;
  bool tied_embeddings = true;
  uint64_t seed = 1;
  float gain = 3.0F;           ///< standard deviation of attention scores and logits; 3 makes peaked rows
  std::string pre = "smollm";  ///< pre-tokenizer
};
inline constexpr uint32_t kMinTinyVocab = 259;  ///< 256 bytes and three special tokens

/// Requires positive sizes and num_q_heads % num_kv_heads == 0 for a file that loads; 5 over 2 heads is written too,
/// to be refused.
Status WriteTinyModel(const TinyModelParams& params, const std::string& path);

/// Changes one tensor's values: [rows, columns] row-major.
using TensorEdit = std::function<void(std::string_view name, std::span<float> values, size_t columns)>;

/// The same model with every tensor in f32; `edit` sees each one, `name_suffix` goes behind general.name (and so
/// changes the header's fingerprint).
Status WriteF32Model(const std::string& in, const std::string& out, const TensorEdit& edit = {},
                     const std::string& name_suffix = "");

enum class OutlierLayers { kAll, kMid, kEnds };

/// Same function, larger keys: in one KV head the two W_k rows of one RoPE pair times `scale`, the same rows of W_q of
/// every query head of its group times 1 / scale. A power of two leaves every product exact.
struct OutlierParams {
  float scale = 64.0F;
  OutlierLayers layers = OutlierLayers::kAll;
  uint32_t kv_head = 0;
  uint32_t pair = 0;    ///< channels 2·pair and 2·pair + 1
  bool values = false;  ///< also W_v rows times `scale` and the matching W_o columns times 1 / scale
};
Status WriteOutlierModel(const std::string& in, const std::string& out, const OutlierParams& params);

}  // namespace kvant::test
