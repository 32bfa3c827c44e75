#include "cli/bench/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/format.h"

namespace kvant::cli {

ArmReport ReportArm(const std::string& name, const std::string& unit, double work, uint64_t bytes,
                    const std::vector<double>& seconds) {
  std::vector<double> rates(seconds.size());
  std::transform(seconds.begin(), seconds.end(), rates.begin(), [work](double taken) { return work / taken; });
  const Summary rate = Summarize(std::move(rates));
  return {name, rate, unit, bytes, static_cast<double>(bytes) * rate.median / work / 1e9};
}

void BenchReport::AddRatio(size_t base, const std::string& title) {
  ReportColumn ratio{"ratio", title, 2, {}};
  for (const ArmReport& arm : arms) {
    ratio.values.emplace_back(arm.rate.median / arms[base].rate.median);
  }
  columns.push_back(std::move(ratio));
}

BenchReport ReportOverMemcpy(const std::vector<Turn>& turns, const std::vector<std::vector<double>>& seconds,
                             uint64_t payload_bytes) {
  BenchReport report;
  for (size_t i = 0; i < turns.size(); ++i) {
    report.arms.push_back(
        ReportArm(turns[i].name, "GB/s", static_cast<double>(payload_bytes) / 1e9, payload_bytes, seconds[i]));
  }
  report.AddRatio(0, "x memcpy");
  return report;
}

Json ToJson(const BenchReport& report) {
  Json arms = Json::array();
  for (const ArmReport& arm : report.arms) {
    arms.push_back({{"name", arm.name},
                    {"median", arm.rate.median},
                    {"spread", arm.rate.spread()},
                    {"unit", arm.unit},
                    {"bytes", arm.bytes},
                    {"gb_s", arm.gb_s}});
  }
  Json json = {{"arms", arms}};
  for (const ReportColumn& column : report.columns) {
    Json values = Json::array();
    for (const std::optional<double>& value : column.values) {
      values.push_back(value ? Json(*value) : Json(nullptr));
    }
    json[column.json_key] = std::move(values);
  }
  json.update(report.facts);
  json["isa"] = report.isa;
  json["threads"] = report.threads;
  return json;
}

std::string ToText(const BenchReport& report) {
  std::vector<std::vector<std::string>> rows = {{"arm", "median", "spread", "unit", "bytes", "GB/s"}};
  for (const ReportColumn& column : report.columns) {
    rows[0].push_back(column.title);
  }
  for (size_t i = 0; i < report.arms.size(); ++i) {
    const ArmReport& arm = report.arms[i];
    rows.push_back({arm.name, fmt::format("{:.2f}", arm.rate.median), fmt::format("{:.2f}", arm.rate.spread()),
                    arm.unit, FormatBytes(arm.bytes), fmt::format("{:.2f}", arm.gb_s)});
    for (const ReportColumn& column : report.columns) {
      rows.back().push_back(column.values[i] ? fmt::format("{:.{}f}", *column.values[i], column.decimals) : "");
    }
  }
  std::string text = FormatTable(rows, /*header=*/true) + "\n";
  for (const std::string& note : report.notes) {
    text += note + "\n";
  }
  return text + fmt::format("{}, {} threads; spread: between the quartiles\n", report.isa, report.threads);
}

}  // namespace kvant::cli
