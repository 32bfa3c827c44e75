#include "kvant/quant/mid_rise.h"

#include <algorithm>
#include <cmath>

#include "kvant/base/check.h"

namespace kvant::quant {

GroupParams FitMidRise(int bits, std::span<const float> x) {
  KVANT_CHECK(!x.empty(), "a group has at least one element");
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float cells = static_cast<float>(1 << bits);
  const Half scale = ToHalf((*high - *low) / cells + 0.0F);  // never -0, which would pass for a scale that is not 0
  return {scale, ToHalf(*low + 0.5F * ToFloat(scale))};
}

void EncodeMidRise(int bits, GroupParams params, std::span<const float> x, std::span<uint8_t> codes) {
  KVANT_CHECK(x.size() == codes.size(), "one code an element");
  const float inverse = params.scale.bits == 0 ? 0.0F : 1.0F / ToFloat(params.scale);
  const float zero = ToFloat(params.zero);
  const float last = static_cast<float>(AffineMax(bits));
  for (size_t i = 0; i < x.size(); ++i) {
    const float cell = std::floor((x[i] - zero) * inverse + 0.5F);
    codes[i] = static_cast<uint8_t>(inverse == 0.0F ? 0.0F : std::clamp(cell, 0.0F, last));
  }
}

}  // namespace kvant::quant
