#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/console.h"
#include "kvant/base/status.h"

namespace kvant::cli {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start);

/// Of one arm's samples: median and quartiles, each by linear interpolation between the two nearest samples.
struct Summary {
  double lower_quartile = 0;
  double median = 0;
  double upper_quartile = 0;
  double spread() const { return upper_quartile - lower_quartile; }
};
/// Requires at least one sample
Summary Summarize(std::vector<double> samples);

/// One of the ways of doing the work that are compared.
struct Turn {
  std::string name;
  std::function<Status(uint32_t round)> call;  ///< timed; rounds count from 0, warm-up included
};

struct Rounds {
  uint32_t warm_up = 0;
  uint32_t measured = 1;
  double seconds = 1e9;  ///< no new round after this long; kMinMeasuredRounds are always measured
  static constexpr uint32_t kMinMeasuredRounds = 3;
};

/// Call all turns once a round in the given order (A B C A B C ...), so that what else the machine does meets all
/// alike.
///
/// Shapes  result [turns][measured rounds], seconds
/// Errors  those of a call, with the turn's name
Result<std::vector<std::vector<double>>> Interleave(std::span<const Turn> turns, const Rounds& rounds,
                                                    std::string_view stage, Console& console);

}  // namespace kvant::cli
