#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/gguf/gguf_header.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {

/// A dimension of a tensor, by what it counts.
enum class TensorDim : uint8_t {
  kOne,
  kEmbedding,
  kFeedForward,
  kFeedForwardTwice,  ///< gate rows, then up rows
  kHeadDim,
  kQueryRows,  ///< num_q_heads * head_dim
  kKvRows,     ///< num_kv_heads * head_dim
  kQkvRows,    ///< query rows, then key rows, then value rows
  kVocab,
  kRopePairs,  ///< rope.dims / 2
};

/// One tensor of an architecture. A per-layer name stands behind "blk.<layer>.".
struct TensorRule {
  std::string_view name;
  bool per_layer;
  bool required;
  TensorDim columns;  ///< elements of a row
  TensorDim rows;     ///< kOne: a vector, which must be f32 (ggml's element-wise operators mix no types)
};

/// A key by which a file asks for something this build does not compute: it must be absent or have this value.
struct NeutralKey {
  std::string_view suffix;  ///< behind "<architecture>."
  GgufType type;            ///< u32, f32 or bool
  float value;
};

/// Sliding windows as an architecture has them where its file says nothing.
struct WindowDefaults {
  uint32_t tokens;   ///< attention.sliding_window; 0: none unless the file has the key
  uint32_t pattern;  ///< attention.sliding_window_pattern: the last of so many layers has no window
  bool own_rope;     ///< windowed layers: RoPE base 10000 and no scaling; else the other layers'
};

/// What a file of one architecture must hold, and what follows from the architecture alone. A new architecture is a
/// new row of the table; its lists are put together from parts, some of them empty.
struct ArchitectureRule {
  std::string_view name;
  RopeLayout layout;
  bool own_head_dim;    ///< attention.key_length may differ from the embedding's share of a head
  bool partial_rope;    ///< rope.dimension_count may be less than the head size
  bool long_rope;       ///< rope.scaling.type may be longrope
  bool ignores_window;  ///< attention.sliding_window may be there and is not looked at, as in libllama
  std::array<std::span<const TensorRule>, 6> tensors;
  std::array<std::span<const NeutralKey>, 3> neutral;
  std::span<const std::string_view> forbidden;  ///< suffixes that may not occur at all
  Activation activation = Activation::kSilu;
  bool scaled_embedding = false;            ///< rows of token_embd times sqrt(embedding)
  uint32_t wide_query_layers = 0;           ///< a model of so many layers divides by sqrt(embedding / heads) instead
  std::optional<float> attention_cap = {};  ///< attn_logit_softcapping where the file has none
  std::optional<float> output_cap = {};     ///< final_logit_softcapping where the file has none; 0: no cap
  std::optional<WindowDefaults> windows = {};
};

/// The rule, or null.
const ArchitectureRule* FindArchitecture(std::string_view name);

/// "llama, qwen2 and phi3": the architectures this build runs, for messages.
std::string ArchitectureNames();

}  // namespace kvant::engine
