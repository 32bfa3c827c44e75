#include "kvant/policy/link_budget.h"

#include <algorithm>
#include <cmath>

namespace kvant::policy {

std::optional<double> LowestBudget(codec::TierRule rule) {
  if (codec::IsSelection(rule)) {
    return std::nullopt;
  }
  return rule == codec::TierRule::kAdaptive ? 0.5 : 0.25;
}

double SecondsAtLowest(const LinkState& link) {
  const double line = static_cast<double>(link.queued_bytes + link.lowest_bytes_left) / link.bytes_per_second;
  const double computing = (link.layers_left - 1) * link.seconds_a_layer;
  const double last_layer = static_cast<double>(link.lowest_bytes_left) / link.layers_left / link.bytes_per_second;
  return std::max(line, computing + last_layer);  // the line is the limit, or the last layer is late
}

uint64_t BytesForLayer(const LinkState& link) {
  const double seconds = std::max(link.seconds_left, SecondsAtLowest(link));
  const auto queued = static_cast<double>(link.queued_bytes);
  const double part = static_cast<double>(link.lowest_bytes) / static_cast<double>(link.lowest_bytes_left);
  const double share = (seconds * link.bytes_per_second - queued) * part;
  const double free = link.layers_left > 1 ? link.seconds_a_layer * link.bytes_per_second - queued : 0.0;
  constexpr double kPlenty = 9e18;
  return static_cast<uint64_t>(std::clamp(std::max(share, free), 0.0, kPlenty));
}

double LargestBudget(double lowest, uint64_t max_bytes, const std::function<uint64_t(double budget)>& layer_bytes) {
  auto low = static_cast<int>(std::lround(lowest * 100));
  int high = 100;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (layer_bytes(middle / 100.0) <= max_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low / 100.0;
}

double ArrivalOf(std::span<const ComputedLayer> layers, double bytes_per_second) {
  double line_free = 0;
  for (const ComputedLayer& layer : layers) {
    line_free = std::max(line_free, layer.seconds) + static_cast<double>(layer.bytes) / bytes_per_second;
  }
  return line_free;
}

}  // namespace kvant::policy
