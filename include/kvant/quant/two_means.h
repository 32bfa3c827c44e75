#pragma once

#include <span>

#include "kvant/quant/group.h"

namespace kvant::quant {

/// Two points for a group of 1 bit: the means of what lies below the middle of the range and of the rest. The lower one
/// is `zero`, their distance `scale`, so DecodeGroup(Rule::kAffine, 1, …) is the inverse; EncodeMidRise(1, …) gives
/// each element to the nearer point, the upper one where both are as near.
///
/// Requires x finite, |x| <= 65504, not empty
/// Numerics means are of double sums: of fp16 elements these are exact, in any order
GroupParams FitTwoMeans(std::span<const float> x);

}  // namespace kvant::quant
