#include "kvant/quant/group.h"

#include <algorithm>
#include <cmath>

#include "kvant/base/check.h"

namespace kvant::quant {
namespace {

// Rounding the division as well as the code would add an error of its own, so both sides multiply by one reciprocal.
float Reciprocal(Half scale) { return scale.bits == 0 ? 0.0F : 1.0F / ToFloat(scale); }

}  // namespace

GroupParams FitGroup(Rule rule, int bits, std::span<const float> x) {
  KVANT_CHECK(!x.empty(), "a group has at least one element");
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  if (rule == Rule::kSymmetric) {
    const float largest = std::max(std::fabs(*low), std::fabs(*high));
    return {ToHalf(largest / static_cast<float>(SymmetricMax(bits))), Half{}};
  }
  // The range is taken from the stored zero, which may lie above the minimum by its rounding. Neither is ever -0: the
  // order of +0 and -0 in the group would show, and a scale of -0 would pass for one that is not 0.
  const Half zero = ToHalf(*low + 0.0F);
  return {ToHalf(std::max(0.0F, *high - ToFloat(zero)) / static_cast<float>(AffineMax(bits))), zero};
}

void EncodeGroup(Rule rule, int bits, GroupParams params, std::span<const float> x, std::span<uint8_t> codes) {
  KVANT_CHECK(x.size() == codes.size(), "one code an element");
  const float inverse = Reciprocal(params.scale);
  const float zero = ToFloat(params.zero);
  const bool symmetric = rule == Rule::kSymmetric;
  const float low = symmetric ? static_cast<float>(-SymmetricMax(bits)) : 0.0F;
  const float high = static_cast<float>(symmetric ? SymmetricMax(bits) : AffineMax(bits));
  const int bias = symmetric ? SymmetricBias(bits) : 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float level = std::clamp(std::nearbyint((x[i] - zero) * inverse), low, high);
    codes[i] = static_cast<uint8_t>(static_cast<int>(level) + bias);
  }
}

void DecodeGroup(Rule rule, int bits, GroupParams params, std::span<const uint8_t> codes, std::span<float> x) {
  KVANT_CHECK(x.size() == codes.size(), "one code an element");
  const int bias = rule == Rule::kSymmetric ? SymmetricBias(bits) : 0;
  const float scale = ToFloat(params.scale);
  const float zero = ToFloat(params.zero);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = scale * static_cast<float>(static_cast<int>(codes[i]) - bias) + zero;
  }
}

}  // namespace kvant::quant
