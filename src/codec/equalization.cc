#include "kvant/codec/equalization.h"

#include <algorithm>
#include <limits>

#include "kvant/base/check.h"

namespace kvant::codec {

Status CheckEqualization(const Equalization& map) {
  const bool positive =
      std::all_of(map.scale.begin(), map.scale.end(), [](Half scale) { return scale.bits > 0 && scale.bits < 0x7C00; });
  return AllFinite(map.mean) && positive
             ? OkStatus()
             : Status(StatusCode::kNumeric, "an equalization mean is not finite or a scale is not positive");
}

void AddKey(std::span<const Half> key, const KeyStats& stats) {
  for (size_t c = 0; c < key.size(); ++c) {
    const float value = ToFloat(key[c]);
    stats.sums[c] += static_cast<double>(value);
    stats.lows[c] = std::min(stats.lows[c], value);
    stats.highs[c] = std::max(stats.highs[c], value);
  }
}

EqualizationBuilder::EqualizationBuilder(uint32_t num_kv_heads, uint32_t head_dim) {
  const size_t size = size_t{num_kv_heads} * head_dim;
  map_ = {num_kv_heads, head_dim, std::vector<Half>(size), std::vector<Half>(size)};
  sums_.assign(size, 0.0);
  lows_.assign(size, std::numeric_limits<float>::infinity());
  highs_.assign(size, -std::numeric_limits<float>::infinity());
}

KeyStats EqualizationBuilder::stats(uint32_t kv_head) {
  const size_t first = size_t{kv_head} * map_.head_dim;
  return {std::span(sums_).subspan(first, map_.head_dim), std::span(lows_).subspan(first, map_.head_dim),
          std::span(highs_).subspan(first, map_.head_dim)};
}

Equalization EqualizationBuilder::Finish(uint64_t num_tokens) {
  // Subnormal scales have few bits: what is that small is left as it is, and the token's own scale takes it.
  constexpr float kSmallestNormal = 0x1p-14F;
  KVANT_CHECK(num_tokens > 0, "the mean of no tokens");
  for (size_t i = 0; i < sums_.size(); ++i) {
    map_.mean[i] = ToHalf(static_cast<float>(sums_[i] / static_cast<double>(num_tokens)));
    const float mean = ToFloat(map_.mean[i]);
    const float largest = std::max(highs_[i] - mean, mean - lows_[i]);
    map_.scale[i] = ToHalf(largest < kSmallestNormal ? 1.0F : std::min(largest, kHalfMax));
  }
  return std::move(map_);
}

void EqualizeRow(std::span<const Half> key, std::span<const Half> mean, std::span<const Half> scale,
                 std::span<Half> dst) {
  for (size_t c = 0; c < key.size(); ++c) {
    const float value = (ToFloat(key[c]) - ToFloat(mean[c])) / ToFloat(scale[c]);
    dst[c] = ToHalf(std::clamp(value, -kHalfMax, kHalfMax));
  }
}

void RestoreRow(std::span<const float> equalized, std::span<const Half> mean, std::span<const Half> scale,
                std::span<float> dst) {
  for (size_t c = 0; c < equalized.size(); ++c) {
    dst[c] = equalized[c] * ToFloat(scale[c]) + ToFloat(mean[c]);
  }
}

}  // namespace kvant::codec
