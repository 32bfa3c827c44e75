#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/measure.h"
#include "cli/console.h"

namespace kvant::cli {

/// What an arm does in one call, and how fast it was.
struct ArmReport {
  std::string name;
  Summary rate;  ///< in `unit`; more is better
  std::string unit;
  uint64_t bytes = 0;  ///< that one call is about: a bench says which
  double gb_s = 0;     ///< 10^9 of those bytes a second, from the median
};

/// `work` is what one call does, in units; `seconds` the times of its calls.
ArmReport ReportArm(const std::string& name, const std::string& unit, double work, uint64_t bytes,
                    const std::vector<double>& seconds);

/// One more number an arm. An arm without it has a null in JSON and a blank in the table.
struct ReportColumn {
  std::string json_key;
  std::string title;
  int decimals = 2;
  std::vector<std::optional<double>> values;
};

struct BenchReport {
  std::vector<ArmReport> arms;
  std::vector<ReportColumn> columns;
  Json facts = Json::object();     ///< further fields of the JSON object
  std::vector<std::string> notes;  ///< lines below the table
  std::string isa;
  int threads = 0;

  /// Medians over the median of arm `base`, as JSON `ratio`.
  void AddRatio(size_t base, const std::string& title);
};

/// Of turns that move or make `payload_bytes` each, of which the first is memcpy.
BenchReport ReportOverMemcpy(const std::vector<Turn>& turns, const std::vector<std::vector<double>>& seconds,
                             uint64_t payload_bytes);

Json ToJson(const BenchReport& report);
std::string ToText(const BenchReport& report);

}  // namespace kvant::cli
