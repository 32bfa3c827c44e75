#include "cli/bench/measure.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kvant/base/check.h"

namespace kvant::cli {
namespace {

double QuantileOf(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Summary Summarize(std::vector<double> samples) {
  KVANT_CHECK(!samples.empty(), "an arm that was measured has samples");
  std::sort(samples.begin(), samples.end());
  return {QuantileOf(samples, 0.25), QuantileOf(samples, 0.5), QuantileOf(samples, 0.75)};
}

Result<std::vector<std::vector<double>>> Interleave(std::span<const Turn> turns, const Rounds& rounds,
                                                    std::string_view stage, Console& console) {
  std::vector<std::vector<double>> seconds(turns.size());
  const Clock::time_point begin = Clock::now();
  const uint32_t total = rounds.warm_up + rounds.measured;
  for (uint32_t round = 0; round < total; ++round) {
    if (round >= rounds.warm_up + Rounds::kMinMeasuredRounds && SecondsSince(begin) > rounds.seconds) {
      break;
    }
    for (size_t i = 0; i < turns.size(); ++i) {
      console.ShowProgress(stage, round * turns.size() + i, total * turns.size(),
                           fmt::format("round {} of {}, {}", round + 1, total, turns[i].name));
      const Clock::time_point start = Clock::now();
      const Status status = turns[i].call(round);
      const double taken = SecondsSince(start);
      if (!status.ok()) {
        return status.WithContext(turns[i].name);
      }
      if (round >= rounds.warm_up) {
        seconds[i].push_back(taken);
      }
    }
  }
  console.ClearProgress();
  return seconds;
}

}  // namespace kvant::cli
