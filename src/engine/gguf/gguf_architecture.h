#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/gguf/gguf_header.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {

/// A dimension of a tensor, by what it counts.
enum class TensorDim : uint8_t {
  kOne,
  kEmbedding,
  kFeedForward,
  kQueryRows,  ///< num_q_heads * head_dim
  kKvRows,     ///< num_kv_heads * head_dim
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

/// What a file of one architecture must hold. A new architecture is a new row of the table.
struct ArchitectureRule {
  std::string_view name;
  RopeLayout layout;
  std::span<const TensorRule> tensors;
  std::span<const NeutralKey> neutral;
  std::span<const std::string_view> forbidden;  ///< suffixes that may not occur at all
};

/// The rule, or null.
const ArchitectureRule* FindArchitecture(std::string_view name);

/// "llama": the architectures this build runs, for messages.
std::string_view ArchitectureNames();

}  // namespace kvant::engine
