#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "kvant/codec/spectrum.h"

namespace kvant::policy {

/// The smallest budget that a deadline may choose: below it the rule cannot go, or tokens would be dropped.
/// Nothing for the selections, which drop tokens at every budget.
std::optional<double> LowestBudget(codec::TierRule rule);

/// What is known when the budget of a layer is due: the prompt has passed the layer, later ones have yet to be
/// computed.
struct LinkState {
  double seconds_left = 0;         ///< until the last byte should have arrived; negative when that time has passed
  double bytes_per_second = 0;     ///< measured; > 0
  uint64_t queued_bytes = 0;       ///< on their way, or waiting for the line
  uint32_t layers_left = 1;        ///< to be sent, this one included
  double seconds_a_layer = 0;      ///< to compute each of those after it
  uint64_t lowest_bytes = 0;       ///< of this layer, at the lowest budget; > 0
  uint64_t lowest_bytes_left = 0;  ///< of it and all after it
};

/// When the last byte arrives, in seconds from now, with the lowest budget in every layer that is left.
double SecondsAtLowest(const LinkState& link);

/// Bytes that this layer may take: its share of what the line can carry in time, or all of what it can carry before the
/// next layer is computed, whichever is more. A time that even the lowest budget would miss is moved to when that would
/// arrive: what computing hides anyway need not be small.
uint64_t BytesForLayer(const LinkState& link);

/// The largest budget from `lowest` to 1, in hundredths, whose layer has at most `max_bytes`; `lowest` where none has.
/// Requires layer_bytes not falling with the budget
double LargestBudget(double lowest, uint64_t max_bytes, const std::function<uint64_t(double budget)>& layer_bytes);

/// A layer of a prompt: when it was computed, and what it takes.
struct ComputedLayer {
  double seconds = 0;
  uint64_t bytes = 0;
};
/// When the last byte of the layers would have arrived, one after the other, none before it was computed.
double ArrivalOf(std::span<const ComputedLayer> layers, double bytes_per_second);

}  // namespace kvant::policy
