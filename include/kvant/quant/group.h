#pragma once

#include <cstdint>
#include <span>

#include "kvant/base/half.h"

namespace kvant::quant {

/// How one group of elements is stored: x ≈ scale · code (symmetric) or x ≈ scale · code + zero (affine).
///
/// Codes are stored as unsigned integers: symmetric codes get `SymmetricBias` added, affine codes need none.
/// Both rules round half to even and compute codes from the *stored* fp16 scale and zero, so a decoder that has
/// only what is stored finds the error bounds below (methods.md sections 2 and 3.12).
enum class Rule : uint8_t {
  kSymmetric = 0,  ///< scale = max|x| / (2^(bits-1) - 1), codes -(2^(bits-1)-1) … 2^(bits-1)-1
  kAffine = 1,     ///< zero = min, scale = (max - min) / (2^bits - 1), codes 0 … 2^bits-1
};

/// What is stored beside the codes of a group. `zero` is 0 under kSymmetric.
struct GroupParams {
  Half scale;
  Half zero;
};

constexpr int SymmetricMax(int bits) { return (1 << (bits - 1)) - 1; }
constexpr int SymmetricBias(int bits) { return 1 << (bits - 1); }
constexpr int AffineMax(int bits) { return (1 << bits) - 1; }

/// Choose scale and zero of a group.
///
/// Requires bits in {4, 8}; x finite, |x| <= 65504, not empty
/// Numerics a scale below half the smallest fp16 number is stored as 0 and every element then decodes to `zero`
GroupParams FitGroup(Rule rule, int bits, std::span<const float> x);

/// The stored codes of a group under given parameters. Elements beyond the range are clamped.
void EncodeGroup(Rule rule, int bits, GroupParams params, std::span<const float> x, std::span<uint8_t> codes);

/// Inverse of EncodeGroup.
///
/// Numerics |x - x̂| <= scale/2 + 2^-11 · max|x| (the rounding of the stored scale and zero); a subnormal scale
///          (below 2^-14) adds up to levels · 2^-25. A constant group under kAffine decodes to fp16(x) exactly
void DecodeGroup(Rule rule, int bits, GroupParams params, std::span<const uint8_t> codes, std::span<float> x);

}  // namespace kvant::quant
