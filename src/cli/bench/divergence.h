#pragma once

#include <span>

namespace kvant::cli {

/// KL(expected ‖ actual) of the distributions two rows of logits stand for, in nats.
/// Requires rows of the same, positive length
double Divergence(std::span<const float> expected, std::span<const float> actual);

}  // namespace kvant::cli
