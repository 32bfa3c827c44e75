#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/bench/attention_layers.h"
#include "cli/bench/bench.h"
#include "cli/bench/gpu_bench.h"
#include "cli/bench/memory.h"
#include "cli/bench/report.h"
#include "cli/engine_flags.h"
#include "cli/precision_list.h"

namespace kvant::cli {
namespace {

constexpr uint32_t kMinContext = 128;  // a page: below, the pages of what is timed would not fit the memory
constexpr uint64_t kFormatBytes = uint64_t{9} << 27;  // 1.2 GB of each precision
constexpr uint64_t kQuickFormatBytes = uint64_t{128} << 20;

struct AttentionFlags {
  EngineFlags cpu;
  std::string device = "cpu";
  uint32_t batch = 8;
  std::string kv = "fp16,int8,int4,int4,eq=off";
  std::vector<uint32_t> contexts = {8192, 16384, 32768};
  uint32_t head_dim = 128;
  uint32_t kv_heads = 8;
  uint32_t q_heads = 64;
  MemoryFlags memory;

  uint64_t format_bytes() const { return memory.BytesOfFormat(kFormatBytes, kQuickFormatBytes); }
  codec::CacheShape shape() const { return {1, kv_heads, head_dim}; }
  /// A precision's memory is shared by its contexts: they take turns, so none finds its own in a cache.
  uint64_t bytes_of_arm() const { return format_bytes() / contexts.size(); }
};

/// Random layers of one precision and context.
struct Contents {
  AttentionLayers layers;
  std::string word;
  uint32_t context;
  std::string tiers;  ///< of a spectrum, how many tokens lie where

  bool is_exact() const { return layers.precision().is_exact(); }
  std::string name() const { return fmt::format("{} {}", word, context); }
};

Status CheckHeads(const AttentionFlags& flags) {
  if (flags.q_heads % flags.kv_heads != 0) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--q-heads {} is not a multiple of --kv-heads {}", flags.q_heads, flags.kv_heads)};
  }
  return OkStatus();
}

/// What all contents are made with.
struct Maker {
  const AttentionFlags& flags;
  kernels::Isa isa;
  AttendJob& job;
  cache::MemoryAccount* account;
  ThreadPool* pool;

  Status Make(const codec::Precision& precision, std::vector<Contents>* contents) const {
    KVANT_RETURN_IF_ERROR(CheckAttention(flags.shape(), precision, isa, job, pool));
    codec::Precision timed = precision;
    timed.num_sinks = precision.pairs ? 0 : precision.num_sinks;  // whole pages alone, from the first token on
    for (const uint32_t context : flags.contexts) {
      KVANT_ASSIGN_OR_RETURN(AttentionLayers layers, AttentionLayers::Make(flags.shape(), timed, isa, context,
                                                                           flags.bytes_of_arm(), account, pool));
      std::string tiers = precision.spectrum ? TierNote(layers, context) : "";
      contents->push_back({std::move(layers), codec::PrecisionWord(precision), context, std::move(tiers)});
    }
    return OkStatus();
  }

 private:
  // What a spectrum's tokens are in, and that no prompt chose them.
  static std::string TierNote(const AttentionLayers& layers, uint32_t context) {
    const codec::TierCounts counts = layers.tier_counts();
    return fmt::format("{} {}: {} tokens at fp16, {} int8, {} int4, {} dropped, chosen at random",
                       codec::PrecisionWord(layers.precision()), context, counts.fp16, counts.int8, counts.int4,
                       counts.dropped);
  }
};

Result<std::vector<Contents>> MakeContents(const std::vector<codec::Precision>& precisions, const Maker& maker,
                                           Console& console) {
  std::vector<Contents> contents;
  for (size_t i = 0; i < precisions.size(); ++i) {
    console.ShowProgress("prepare", i, precisions.size(), codec::PrecisionWord(precisions[i]));
    KVANT_RETURN_IF_ERROR(maker.Make(precisions[i], &contents));
  }
  return contents;
}

/// What is timed, all precisions of a context together.
using Arms = std::vector<const Contents*>;

Arms ArmsOf(const std::vector<Contents>& contents) {
  Arms arms;
  for (const Contents& of : contents) {
    arms.push_back(&of);
  }
  std::stable_sort(arms.begin(), arms.end(), [](const auto* a, const auto* b) { return a->context < b->context; });
  return arms;
}

std::vector<Turn> TurnsOf(const Arms& arms, AttendJob& job, ReadProbe& probe) {
  std::vector<Turn> turns;
  turns.reserve(arms.size() + 1);
  for (const Contents* arm : arms) {
    turns.push_back({arm->name(), [&job, arm](uint32_t round) {
                       arm->layers.Attend(job, round);
                       return OkStatus();
                     }});
  }
  turns.push_back({"read", [&probe](uint32_t round) {
                     probe.Read(round);
                     return OkStatus();
                   }});
  return turns;
}

/// Ratio to fp16 at the same context; none where fp16 is not among the arms.
ReportColumn OverFp16(const Arms& arms, const std::vector<ArmReport>& reports) {
  ReportColumn column{"over_fp16", "x fp16", 2, {}};
  for (size_t i = 0; i < arms.size(); ++i) {
    std::optional<double> ratio;
    for (size_t base = 0; base < arms.size(); ++base) {
      if (arms[base]->is_exact() && arms[base]->context == arms[i]->context) {
        ratio = reports[i].rate.median / reports[base].rate.median;
      }
    }
    column.values.push_back(ratio);
  }
  return column;
}

BenchReport ReportOf(const Arms& arms, const std::vector<std::vector<double>>& seconds, uint64_t read_bytes,
                     const AttentionFlags& flags) {
  BenchReport report;
  report.isa = flags.cpu.isa;
  report.threads = flags.cpu.threads;
  const double read_gb_s = ReportArm("read", "", 1, read_bytes, seconds.back()).gb_s;
  ReportColumn share{"share_of_read", "of read", 2, {}};
  ReportColumn milliseconds{"ms", "ms", 2, {}};
  for (size_t i = 0; i < arms.size(); ++i) {
    const AttentionLayers::Load load = arms[i]->layers.load();
    const double places = arms[i]->layers.places();
    std::vector<double> seconds_of_one;
    for (const double taken : seconds[i]) {
      seconds_of_one.push_back(taken / places);
    }
    report.arms.push_back(
        ReportArm(arms[i]->name(), "Mtok/s", static_cast<double>(load.tokens) / 1e6, load.bytes, seconds_of_one));
    share.values.emplace_back(report.arms[i].gb_s / read_gb_s);
    milliseconds.values.emplace_back(1e3 * Summarize(seconds_of_one).median);
  }
  report.AddRatio(0, "x first");
  report.columns.push_back(OverFp16(arms, report.arms));
  report.columns.push_back(std::move(share));
  report.columns.push_back(std::move(milliseconds));
  report.facts = {{"read_gb_s", read_gb_s},
                  {"contexts", flags.contexts},
                  {"head_dim", flags.head_dim},
                  {"kv_heads", flags.kv_heads},
                  {"q_heads", flags.q_heads}};
  report.notes = {fmt::format("one query token, {} query heads over {} KV heads of {}; Mtok/s: cached tokens met",
                              flags.q_heads, flags.kv_heads, flags.head_dim),
                  fmt::format("memory read in the same rounds: {:.2f} GB/s", read_gb_s)};
  std::vector<std::string> tiers;
  for (const Contents* arm : arms) {
    if (!arm->tiers.empty()) {
      tiers.push_back(arm->tiers);
    }
  }
  report.notes.insert(report.notes.end(), tiers.begin(), tiers.end());
  report.facts["tiers"] = tiers;
  return report;
}

Status RunAttentionBench(const AttentionFlags& flags, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const std::vector<codec::Precision> precisions, ParsePrecisionList(flags.kv));
  KVANT_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ParseIsa(flags.cpu.isa));
  KVANT_RETURN_IF_ERROR(CheckHeads(flags));
  ThreadPool pool(flags.cpu.threads);
  AttendJob job(isa, flags.shape(), flags.q_heads, &pool);
  cache::MemoryAccount account;
  KVANT_ASSIGN_OR_RETURN(const std::vector<Contents> contents,
                         MakeContents(precisions, {flags, isa, job, &account, &pool}, console));
  KVANT_ASSIGN_OR_RETURN(ReadProbe probe, ReadProbe::Allocate(flags.format_bytes(), &pool));
  const Arms arms = ArmsOf(contents);
  const std::vector<Turn> turns = TurnsOf(arms, job, probe);
  const Rounds rounds = flags.memory.quick ? Rounds{2, 12, 10} : Rounds{4, 40};
  KVANT_ASSIGN_OR_RETURN(const auto seconds, Interleave(turns, rounds, "measure", console));
  const BenchReport report = ReportOf(arms, seconds, probe.bytes_per_call(), flags);
  console.PrintJson(ToJson(report));
  console.PrintText(ToText(report));
  return OkStatus();
}

Status RunOnGpu(const AttentionFlags& flags, Console& console) {
  const bool is_default = flags.kv == AttentionFlags().kv;
  return RunGpuAttention({is_default ? kGpuFormats : flags.kv, flags.contexts, flags.batch, flags.head_dim,
                          flags.kv_heads, flags.q_heads, flags.memory.quick},
                         console);
}

}  // namespace

void AddAttentionBench(CLI::App& bench, Work* chosen) {
  auto flags = std::make_shared<AttentionFlags>();
  CLI::App* command = AddBench(
      bench, "attention", "Attention of one token over compressed keys and values, in place",
      [flags](Console& console) {
        return flags->device == "cuda" ? RunOnGpu(*flags, console) : RunAttentionBench(*flags, console);
      },
      chosen);
  AddDevice(*command, flags->device);
  AddOption(*command, "--batch", flags->batch, "Sequences, with --device cuda")->check(InRange(1U, 4096U));
  AddOption(*command, "--kv", flags->kv, "Precisions that are compared, separated by commas");
  AddOption(*command, "--context", flags->contexts, "Tokens in the cache; several, separated by commas")
      ->delimiter(',')
      ->check(InRange(kMinContext, 1U << 20));
  AddHeadDim(*command, flags->head_dim);
  AddOption(*command, "--kv-heads", flags->kv_heads, "KV heads")->check(InRange(1, 1024));
  AddOption(*command, "--q-heads", flags->q_heads, "Query heads, a multiple of the KV heads")->check(InRange(1, 4096));
  AddCpuFlags(*command, flags->cpu);
  AddMemoryFlags(*command, flags->memory);
}

}  // namespace kvant::cli
