#pragma once

#include <cstdint>
#include <string>

#include "kvant/codec/precision.h"

namespace kvant::wire {

/// Which channels of a head RoPE turns together. The numbers are stable for life.
enum class RopeLayout : uint32_t {
  kNone = 0,
  kAdjacent = 1,  ///< channels 2i and 2i + 1 (GGML NORM: llama)
  kHalves = 2,    ///< channels i and i + half the rotated channels (GGML NEOX: qwen, gemma)
};
inline constexpr uint32_t kNumRopeLayouts = 3;

/// What two engines must share so that one can go on with the other's KV.
struct ModelIdentity {
  uint64_t model_fingerprint = 0;      ///< of all weights, hence of their quantization too
  uint64_t tokenizer_fingerprint = 0;  ///< of vocabulary, merges and special ids
  codec::CacheShape shape;
  RopeLayout rope_layout = RopeLayout::kNone;
  float rope_base = 0.0F;
  uint64_t rope_digest = 0;  ///< of everything else that turns a position into a rotation; 0: nothing else does
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

/// "" when equal; else every field that differs: "head_dim: sender 64, receiver 80; rope_base: …".
std::string DifferenceOf(const ModelIdentity& sender, const ModelIdentity& receiver);

}  // namespace kvant::wire
