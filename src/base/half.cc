#include "kvant/base/half.h"

#include <algorithm>
#include <bit>

#include "kvant/base/check.h"

namespace kvant {

Half ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return {static_cast<uint16_t>(sign | 0x7E00U)};
  }
  if (magnitude >= 0x477FF000U) {  // rounds to 65536 or more
    return {static_cast<uint16_t>(sign | 0x7C00U)};
  }
  if (magnitude < 0x38800000U) {  // subnormal half: let the float unit round at the right bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U))};
  }
  const uint32_t odd = (magnitude >> 13) & 1U;
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13))};
}

float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1FU;
  const uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

void ToHalf(std::span<const float> src, std::span<Half> dst) {
  KVANT_CHECK(src.size() == dst.size(), "conversion needs spans of one size");
  std::transform(src.begin(), src.end(), dst.begin(), [](float x) { return ToHalf(x); });
}

void ToFloat(std::span<const Half> src, std::span<float> dst) {
  KVANT_CHECK(src.size() == dst.size(), "conversion needs spans of one size");
  std::transform(src.begin(), src.end(), dst.begin(), [](Half x) { return ToFloat(x); });
}

bool AllFinite(std::span<const float> values) {
  uint32_t worst = 0;  // branch-free, so that the compiler vectorizes it
  for (const float value : values) {
    worst = std::max(worst, std::bit_cast<uint32_t>(value) & 0x7FFFFFFFU);
  }
  return worst < 0x7F800000U;
}

bool AllFinite(std::span<const Half> values) {
  uint16_t worst = 0;
  for (const Half value : values) {
    worst = std::max<uint16_t>(worst, value.bits & 0x7FFFU);
  }
  return worst < 0x7C00U;
}

}  // namespace kvant
