#pragma once

#include <string>

#include "cli/console.h"
#include "cli/generate_flags.h"

namespace kvant::cli {

/// What a generation was, beside its numbers.
struct GenerateContext {
  std::string model;
  std::string isa;
  int threads = 0;
  KvPlan plan;
  double link_gbps = 0;
};

/// The JSON object of `kvant generate --json`.
Json ReportJson(const engine::GenerateReport& report, const GenerateContext& context);

/// The table after the answer.
std::string ReportTable(const engine::GenerateReport& report, const GenerateContext& context);

}  // namespace kvant::cli
