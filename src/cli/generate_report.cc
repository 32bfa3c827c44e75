#include "cli/generate_report.h"

#include <fmt/core.h>

#include "cli/format.h"

namespace kvant::cli {
namespace {

using engine::GenerateReport;

std::string WireWord(const GenerateContext& context) {
  return context.plan.wire ? codec::PrecisionWord(*context.plan.wire) : "";
}

// The spectrum that gave the prompt's tokens to tiers, on the wire or in place.
const std::optional<codec::Spectrum>& SpectrumOf(const GenerateContext& context) {
  return context.plan.wire ? context.plan.wire->spectrum : context.plan.kv.spectrum;
}

std::string_view PolicyName(const GenerateContext& context) {
  const auto& spectrum = SpectrumOf(context);
  return spectrum ? codec::TierRuleName(spectrum->rule) : "uniform";
}

std::string_view ImportanceName(const GenerateContext& context) {
  const auto& spectrum = SpectrumOf(context);
  return spectrum && codec::RanksTokens(spectrum->rule) ? codec::ImportanceName(spectrum->importance) : "none";
}

std::string Rate(double tokens, double milliseconds) {
  return milliseconds > 0 ? fmt::format("{:.1f} tok/s", tokens * 1000 / milliseconds) : "";
}

std::string Milliseconds(const std::optional<double>& mean) {
  return mean ? fmt::format("{:.1f} ms a token", *mean) : "-";
}

Json Maybe(const std::optional<double>& number) { return number ? Json(*number) : Json(nullptr); }

// What a spectrum cost on the way, chosen by the user or for a time to the first token.
Json BudgetOf(const GenerateReport& report, const GenerateContext& context) {
  const auto& spectrum = SpectrumOf(context);
  return report.pacing ? Maybe(report.pacing->budget) : spectrum ? Json(spectrum->budget) : Json(nullptr);
}

void AddPacing(const GenerateReport& report, Json* json) {
  const engine::PacingReport pacing = report.pacing.value_or(engine::PacingReport{});
  (*json)["ttft_target_ms"] = report.pacing ? Json(pacing.target_ms) : Json(nullptr);
  (*json)["ttft_target_met"] = report.pacing ? Json(report.ttft_ms <= pacing.target_ms) : Json(nullptr);
  (*json)["ttft_lowest_ms"] = Maybe(pacing.lowest_ttft_ms);
  (*json)["budget_lowest"] = Maybe(pacing.lowest_budget);
  (*json)["budget_highest"] = Maybe(pacing.highest_budget);
}

// How the time to the first token came out, and what the lowest budget would have done.
std::vector<std::string> PacingRow(const GenerateReport& report) {
  const engine::PacingReport& pacing = *report.pacing;
  const double late = report.ttft_ms - pacing.target_ms;
  const bool reachable = !pacing.lowest_ttft_ms || *pacing.lowest_ttft_ms <= pacing.target_ms;
  return {"target", fmt::format("{:.0f} ms", pacing.target_ms),
          late <= 0 ? "met" : fmt::format("missed by {:.0f} ms", late),
          late <= 0   ? fmt::format("b={:.2f}", pacing.budget.value_or(1))
          : reachable ? fmt::format("b={:.2f}; the lowest: {:.0f} ms", pacing.budget.value_or(1),
                                    pacing.lowest_ttft_ms.value_or(report.ttft_ms))
                      : fmt::format("out of reach: {:.0f} ms at the lowest budget", *pacing.lowest_ttft_ms)};
}

std::string Share(uint64_t bytes, uint64_t fp16_bytes) {
  return fp16_bytes == 0 ? ""
                         : fmt::format("{:.3f} of fp16", static_cast<double>(bytes) / static_cast<double>(fp16_bytes));
}

}  // namespace

Json ReportJson(const GenerateReport& report, const GenerateContext& context) {
  const bool sent = context.plan.wire.has_value();
  Json json = {{"text", report.text},
               {"finish_reason", engine::FinishReasonName(report.finish_reason)},
               {"prompt_tokens", report.prompt_tokens},
               {"cached_tokens", report.cached_tokens},
               {"completion_tokens", report.completion_tokens},
               {"ttft_ms", report.ttft_ms},
               {"tpot_ms", report.tpot_ms ? Json(*report.tpot_ms) : Json(nullptr)},
               {"prefill_ms", report.prefill_ms},
               {"transfer_ms", report.transfer_ms},
               {"kv_bytes", report.kv_bytes},
               {"kv_bytes_fp16", report.kv_bytes_fp16},
               {"kv_bytes_allocated", report.kv_bytes_allocated},
               {"wire_bytes", report.wire_bytes},
               {"wire_bytes_fp16", report.wire_bytes_fp16},
               {"upgrade_bytes", report.upgrade_bytes},
               {"wire_tokens_encoded", report.wire_tokens_encoded},
               {"wire_tokens_exact", report.wire_tokens_exact},
               {"bits", {{"payload", report.bits.payload}, {"effective", report.bits.effective}}},
               {"tiers",
                {{"fp16", report.tiers.fp16},
                 {"int8", report.tiers.int8},
                 {"int4", report.tiers.int4},
                 {"dropped", report.tiers.dropped}}},
               {"policy", PolicyName(context)},
               {"importance", ImportanceName(context)},
               {"kv", codec::PrecisionWord(context.plan.kv)},
               {"wire", sent ? Json(WireWord(context)) : Json(nullptr)},
               {"link_gbps", sent && context.link_gbps > 0 ? Json(context.link_gbps) : Json(nullptr)},
               {"model", context.model},
               {"isa", context.isa},
               {"threads", context.threads}};
  json["budget"] = BudgetOf(report, context);
  json["link_gbps_measured"] = report.line_gbps > 0 ? Json(report.line_gbps) : Json(nullptr);
  AddPacing(report, &json);
  return json;
}

std::string ReportTable(const GenerateReport& report, const GenerateContext& context) {
  std::vector<std::vector<std::string>> rows = {
      {"prompt",
       report.cached_tokens == 0
           ? fmt::format("{} tokens", report.prompt_tokens)
           : fmt::format("{} tokens, {} of them kept", report.prompt_tokens, report.cached_tokens),
       fmt::format("{:.0f} ms", report.prefill_ms),
       Rate(report.prompt_tokens - report.cached_tokens, report.prefill_ms)},
      {"first token", "", fmt::format("{:.0f} ms", report.ttft_ms)},
      {"answer", fmt::format("{} tokens", report.completion_tokens), Milliseconds(report.tpot_ms),
       Rate(1, report.tpot_ms.value_or(0))},
      {"cache in use", codec::PrecisionWord(context.plan.kv), FormatBytes(report.kv_bytes),
       Share(report.kv_bytes, report.kv_bytes_fp16)},
      {"cache allocated", "whole pages", FormatBytes(report.kv_bytes_allocated)}};
  if (context.plan.wire) {
    rows.push_back(
        {"wire", WireWord(context), FormatBytes(report.wire_bytes), Share(report.wire_bytes, report.wire_bytes_fp16)});
    rows.push_back({"sent", "prompt tokens", fmt::format("{} encoded", report.wire_tokens_encoded),
                    fmt::format("{} at fp16", report.wire_tokens_exact)});
    if (report.upgrade_bytes > 0) {
      rows.push_back({"upgrades", "missing planes", FormatBytes(report.upgrade_bytes), "during the answer"});
    }
    if (report.pacing) {
      rows.push_back(PacingRow(report));
    }
    if (report.line_gbps > 0) {
      rows.push_back({"line", "as measured", fmt::format("{:.3g} Gbit/s", report.line_gbps)});
    }
    rows.push_back({"transfer", context.link_gbps > 0 ? fmt::format("{} Gbit/s", context.link_gbps) : "no rate limit",
                    fmt::format("{:.0f} ms", report.transfer_ms), "after prefill"});
  }
  rows.push_back({"bits", "", fmt::format("{:.2f} payload", report.bits.payload),
                  fmt::format("{:.2f} effective", report.bits.effective)});
  rows.push_back({"ran on", context.isa, fmt::format("{} threads", context.threads),
                  fmt::format("ended by {}", engine::FinishReasonName(report.finish_reason))});
  return FormatTable(rows, /*header=*/false);
}

}  // namespace kvant::cli
