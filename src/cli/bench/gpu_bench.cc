#include "cli/bench/gpu_bench.h"

#include <fmt/core.h>

#include "cli/bench/report.h"
#include "kvant/kernels/cuda/measure.h"

namespace kvant::cli {
namespace {

using kernels::cuda::Measured;
using kernels::cuda::MeasuredArm;

/// "int8,pnmix,v=4" → "int8", "pnmix v=4": a word with '=' belongs to the one before.
std::vector<kernels::cuda::AttentionArm> ArmsOf(const std::string& kv) {
  std::vector<kernels::cuda::AttentionArm> arms;
  size_t begin = 0;
  while (begin <= kv.size()) {
    const size_t end = std::min(kv.find(',', begin), kv.size());
    const std::string word = kv.substr(begin, end - begin);
    if (!arms.empty() && word.find('=') != std::string::npos) {
      arms.back().format += " " + word;
    } else {
      arms.push_back({word});
    }
    begin = end + 1;
  }
  return arms;
}

void AddDeviceFacts(const Measured& measured, BenchReport* report) {
  report->isa = measured.architecture;
  report->threads = 1;
  report->facts["device"] = measured.device;
  report->facts["sm_mhz"] = measured.sm_mhz;
  report->facts["memory_mhz"] = measured.memory_mhz;
  report->notes.push_back(
      fmt::format("{}, {:.0f} MHz SM, {:.0f} MHz memory", measured.device, measured.sm_mhz, measured.memory_mhz));
}

void Print(const BenchReport& report, Console& console) {
  console.PrintJson(ToJson(report));
  console.PrintText(ToText(report));
}

/// One number an arm beside its rate.
struct AttentionColumns {
  ReportColumn over_fp16{"over_fp16", "x fp16", 2, {}};
  ReportColumn share{"share_of_read", "of read", 2, {}};
  ReportColumn limit{"limit_us", "limit us", 1, {}};
  ReportColumn microseconds{"us", "us", 1, {}};
  ReportColumn error{"error", "error", 5, {}};

  void Add(const MeasuredArm& arm, const MeasuredArm* fp16) {
    const double seconds = Summarize(arm.seconds).median;
    over_fp16.values.push_back(fp16 != nullptr ? std::optional(Summarize(fp16->seconds).median / seconds)
                                               : std::nullopt);
    share.values.emplace_back(Summarize(arm.read_seconds).median / seconds);
    limit.values.emplace_back(arm.bound_seconds * 1e6);
    microseconds.values.emplace_back(seconds * 1e6);
    error.values.emplace_back(arm.error);
  }
};

const MeasuredArm* Fp16Of(const Measured& measured) {
  for (const MeasuredArm& arm : measured.arms) {
    if (arm.name == "fp16") {
      return &arm;
    }
  }
  return nullptr;
}

Status ReportPages(Result<Measured> measured, const GpuPages& wanted, Console& console) {
  KVANT_RETURN_IF_ERROR(measured.status());
  BenchReport report;
  ReportColumn limit{"limit_us", "limit us", 1, {}};
  for (const MeasuredArm& arm : measured.value().arms) {
    report.arms.push_back(ReportArm(arm.name, "GB/s", static_cast<double>(arm.bytes) / 1e9, arm.bytes, arm.seconds));
    limit.values.emplace_back(arm.bound_seconds * 1e6);
  }
  report.AddRatio(0, "x memcpy");
  report.columns.push_back(std::move(limit));
  report.facts = {{"head_dim", wanted.head_dim}};
  report.notes = {
      "fp16 rows: bytes and rates are theirs; limit: the copy's rate at the bytes that are read and written"};
  AddDeviceFacts(measured.value(), &report);
  Print(report, console);
  return OkStatus();
}

kernels::cuda::CodecMeasurement Wanted(const GpuPages& wanted) {
  kernels::cuda::CodecMeasurement measurement;
  measurement.head_dim = wanted.head_dim;
  measurement.rounds = wanted.quick ? 5 : 15;
  return measurement;
}

}  // namespace

Status RunGpuAttention(const GpuAttention& wanted, Console& console) {
  if (wanted.q_heads % wanted.kv_heads != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--q-heads {} is not a multiple of --kv-heads {}", wanted.q_heads, wanted.kv_heads)};
  }
  BenchReport report;
  AttentionColumns columns;
  Measured last;
  for (size_t i = 0; i < wanted.contexts.size(); ++i) {
    const uint32_t context = wanted.contexts[i];
    console.ShowProgress("measure", i, wanted.contexts.size(), fmt::format("{} x {}", wanted.batch, context));
    kernels::cuda::AttentionMeasurement measurement;
    measurement.shape = {wanted.head_dim, wanted.kv_heads, wanted.q_heads / wanted.kv_heads};
    measurement.batch = wanted.batch;
    measurement.tokens = context;
    measurement.arms = ArmsOf(wanted.kv);
    measurement.rounds = wanted.quick ? 5 : 15;
    KVANT_ASSIGN_OR_RETURN(last, MeasureAttention(measurement));
    for (const MeasuredArm& arm : last.arms) {
      report.arms.push_back(ReportArm(fmt::format("{} {}", arm.name, context), "Mtok/s",
                                      static_cast<double>(wanted.batch) * context / 1e6, arm.bytes, arm.seconds));
      columns.Add(arm, Fp16Of(last));
    }
  }
  report.AddRatio(0, "x first");
  for (ReportColumn* column :
       {&columns.over_fp16, &columns.share, &columns.limit, &columns.microseconds, &columns.error}) {
    report.columns.push_back(std::move(*column));
  }
  report.facts = {{"batch", wanted.batch},
                  {"contexts", wanted.contexts},
                  {"head_dim", wanted.head_dim},
                  {"kv_heads", wanted.kv_heads},
                  {"q_heads", wanted.q_heads}};
  report.notes = {fmt::format("{} sequences, one query token each, {} query heads over {} KV heads of {}", wanted.batch,
                              wanted.q_heads, wanted.kv_heads, wanted.head_dim),
                  "limit: the slower of a read of the bytes and the arithmetic; error: of the largest output"};
  AddDeviceFacts(last, &report);
  Print(report, console);
  return OkStatus();
}

Status RunGpuCodec(const GpuPages& wanted, Console& console) {
  console.ShowProgress("measure", 0, 1, "rows");
  return ReportPages(MeasureCodec(Wanted(wanted)), wanted, console);
}

Status RunGpuPack(const GpuPages& wanted, Console& console) {
  console.ShowProgress("measure", 0, 1, "pages");
  return ReportPages(MeasurePack(Wanted(wanted)), wanted, console);
}

}  // namespace kvant::cli
