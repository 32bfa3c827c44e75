#pragma once

#include <cstdint>
#include <span>

namespace kvant {

/// IEEE 754 binary16, as stored. Arithmetic is done in float.
struct Half {
  uint16_t bits = 0;
  friend bool operator==(Half, Half) = default;
};
static_assert(sizeof(Half) == 2);

inline constexpr float kHalfMax = 65504.0F;

/// Round to nearest even; beyond kHalfMax (after rounding) infinity, NaN stays NaN.
Half ToHalf(float value);
float ToFloat(Half value);

/// Element by element, as ToHalf. Requires src.size() == dst.size(); dst may not overlap src.
void ToHalf(std::span<const float> src, std::span<Half> dst);
void ToFloat(std::span<const Half> src, std::span<float> dst);

/// True when every value is finite.
bool AllFinite(std::span<const float> values);
bool AllFinite(std::span<const Half> values);

}  // namespace kvant
