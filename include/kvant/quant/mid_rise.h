#pragma once

#include <cstdint>
#include <span>

#include "kvant/quant/group.h"

namespace kvant::quant {

/// Mid-rise cells: the range is cut into 2^bits equal cells and each is represented by its middle,
///   scale = (max - min) / 2^bits, x ≈ scale · code + zero with zero = min + scale/2.
/// At 1 bit these are the quarter points of the range (methods.md 5.2), the only rule that works there.
///
/// The form is kAffine's, so DecodeGroup(Rule::kAffine, …) is the inverse and kernels need to know no rule.
/// Requires bits in 1…8; x finite, |x| <= 65504, not empty
GroupParams FitMidRise(int bits, std::span<const float> x);

/// The cell of each element under the stored parameters; a border belongs to the upper cell, beyond the range the
/// outermost cell. Codes of a group whose scale is 0 are 0.
void EncodeMidRise(int bits, GroupParams params, std::span<const float> x, std::span<uint8_t> codes);

}  // namespace kvant::quant
