#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvant::policy {

/// The position heuristic that the authors' tables were made with (methods.md 3.12): no attention is read.
///
/// 1 for the first 4 tokens, then exp(-0.01·(j - 4)); from int(0.8·n) on at least a ramp from 0.3 to 0.8; scaled to
/// 0…1 over the prompt.
std::vector<float> PositionImportance(uint32_t num_tokens);

/// I_j = A_j · exp(-decay · Δ_j), Δ_j the distance to the last token (SpectrumKV section 3). decay 0 leaves A alone.
/// Requires mass >= 0, decay >= 0
void ApplyRecencyDecay(double decay, std::span<float> mass);

/// One ranking out of several: the sum of importances, each scaled to a sum of 1 first, so that no head outvotes the
/// others by the number of its queries.
/// Shapes  importances: rows of equal length
std::vector<float> Combine(std::span<const std::vector<float>> importances);

}  // namespace kvant::policy
