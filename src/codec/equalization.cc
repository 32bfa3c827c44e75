#include "kvant/codec/equalization.h"

#include <algorithm>
#include <cmath>

#include "kvant/base/check.h"

namespace kvant::codec {

void AddKeySum(std::span<const Half> key, std::span<double> sums) {
  for (size_t c = 0; c < key.size(); ++c) {
    sums[c] += static_cast<double>(ToFloat(key[c]));
  }
}

void AddKeyRange(std::span<const Half> key, std::span<const Half> mean, std::span<float> ranges) {
  for (size_t c = 0; c < key.size(); ++c) {
    ranges[c] = std::max(ranges[c], std::fabs(ToFloat(key[c]) - ToFloat(mean[c])));
  }
}

EqualizationBuilder::EqualizationBuilder(uint32_t num_kv_heads, uint32_t head_dim) {
  const size_t size = size_t{num_kv_heads} * head_dim;
  map_ = {num_kv_heads, head_dim, std::vector<Half>(size), std::vector<Half>(size)};
  sums_.assign(size, 0.0);
  ranges_.assign(size, 0.0F);
}

void EqualizationBuilder::FinishMean(uint64_t num_tokens) {
  KVANT_CHECK(num_tokens > 0, "the mean of no tokens");
  std::transform(sums_.begin(), sums_.end(), map_.mean.begin(), [&](double sum) {
    return ToHalf(static_cast<float>(sum / static_cast<double>(num_tokens)));
  });
}

Equalization EqualizationBuilder::Finish() {
  // Subnormal scales have few bits: what is that small is left as it is, and the token's own scale takes it.
  constexpr float kSmallestNormal = 0x1p-14F;
  std::transform(ranges_.begin(), ranges_.end(), map_.scale.begin(), [](float largest) {
    return ToHalf(largest < kSmallestNormal ? 1.0F : std::min(largest, kHalfMax));
  });
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
