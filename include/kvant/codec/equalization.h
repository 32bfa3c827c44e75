#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/half.h"
#include "kvant/base/status.h"

namespace kvant::codec {

/// Key equalization of one layer (design.md decision 6; lab.md sections 2 and 10.1).
///
/// A key is stored as (k - mean) / scale, per KV head and channel. A query meets stored keys as
///   q·k = Σ_c (q_c · scale_c) · k̃_c + q·mean,
/// so the scale folds into q and q·mean is one number a query head, layer and step.
/// Codes are computed from the fp16 mean and scale stored here; a scale of 0 is stored as 1.
///
/// Shapes  mean, scale [num_kv_heads, head_dim] fp16
struct Equalization {
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  std::vector<Half> mean;
  std::vector<Half> scale;

  std::span<const Half> MeanOf(uint32_t kv_head) const {
    return std::span(mean).subspan(size_t{kv_head} * head_dim, head_dim);
  }
  std::span<const Half> ScaleOf(uint32_t kv_head) const {
    return std::span(scale).subspan(size_t{kv_head} * head_dim, head_dim);
  }
  friend bool operator==(const Equalization&, const Equalization&) = default;
};

/// Errors  kNumeric: a mean that is not finite, or a scale that is not positive
Status CheckEqualization(const Equalization& map);

/// The smallest number of tokens beyond the sinks from which a map is made.
inline constexpr uint32_t kMinEqualizationTokens = 128;

/// What is gathered of the keys of one KV head, channel by channel. Shapes  each [head_dim]
struct KeyStats {
  std::span<double> sums;
  std::span<float> lows;
  std::span<float> highs;
};
/// sums += key, lows = min(lows, key), highs = max(highs, key).
void AddKey(std::span<const Half> key, const KeyStats& stats);

/// Mean of the keys and the largest magnitude that remains without it, per KV head and channel, in one pass: the key
/// farthest from the mean is the lowest or the highest one.
///
/// Usage    add every key once to its head's stats (AddKey or its fast twin in kernels/equalize.h), Finish
/// Requires finite keys; the sinks are left out by the caller
/// Threads  different KV heads may be added to at once
class EqualizationBuilder {
 public:
  EqualizationBuilder(uint32_t num_kv_heads, uint32_t head_dim);

  KeyStats stats(uint32_t kv_head);
  /// `num_tokens` is how many keys each head was given; at least 1.
  Equalization Finish(uint64_t num_tokens);

 private:
  Equalization map_;
  std::vector<double> sums_;
  std::vector<float> lows_;
  std::vector<float> highs_;
};

/// dst = (key - mean) / scale in fp32, rounded to fp16 once. Beyond the fp16 range: ±65504.
/// Shapes  key, mean, scale, dst [head_dim]; dst may be key
void EqualizeRow(std::span<const Half> key, std::span<const Half> mean, std::span<const Half> scale,
                 std::span<Half> dst);

/// The inverse, in fp32: scale · key + mean.
void RestoreRow(std::span<const float> equalized, std::span<const Half> mean, std::span<const Half> scale,
                std::span<float> dst);

}  // namespace kvant::codec
