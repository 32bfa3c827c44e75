#include <fmt/core.h>

#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/gpu_bench.h"
#include "cli/bench/memory.h"
#include "cli/bench/pack_work.h"
#include "cli/bench/report.h"
#include "cli/engine_flags.h"
#include "cli/precision_list.h"

namespace kvant::cli {
namespace {

constexpr uint64_t kPayloadBytes = uint64_t{1} << 29;
constexpr uint64_t kQuickPayloadBytes = uint64_t{1} << 28;

struct PackFlags {
  EngineFlags cpu;
  std::string device = "cpu";
  std::string kv = "pnmix:3/1@50%,pairs:2.0";
  uint32_t head_dim = 128;
  MemoryFlags memory;
};

Result<std::vector<codec::PairPrecision>> PrecisionsOf(const std::string& kv) {
  std::vector<codec::PairPrecision> precisions;
  for (const std::string& word : SplitPrecisionList(kv)) {
    KVANT_ASSIGN_OR_RETURN(const codec::PairPrecision precision, codec::ParsePairPrecision(word));
    precisions.push_back(precision);
  }
  return precisions;
}

std::vector<Turn> TurnsOf(PackWork& work, std::span<const codec::PairPrecision> precisions) {
  std::vector<Turn> turns = {{"memcpy", [&work](uint32_t) {
                                work.Copy();
                                return OkStatus();
                              }}};
  for (size_t i = 0; i < precisions.size(); ++i) {
    turns.push_back({codec::PairPrecisionWord(precisions[i]), [&work, i](uint32_t) {
                       work.Pack(i);
                       return OkStatus();
                     }});
  }
  return turns;
}

Status RunPackBench(const PackFlags& flags, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const std::vector<codec::PairPrecision> precisions, PrecisionsOf(flags.kv));
  KVANT_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ParseIsa(flags.cpu.isa));
  ThreadPool pool(flags.cpu.threads);
  console.ShowProgress("prepare", 0, 1, "rows");
  KVANT_ASSIGN_OR_RETURN(PackWork work,
                         PackWork::Make(precisions, flags.head_dim,
                                        flags.memory.BytesOfFormat(kPayloadBytes, kQuickPayloadBytes), isa, &pool));
  const std::vector<Turn> turns = TurnsOf(work, precisions);
  const Rounds rounds = flags.memory.quick ? Rounds{1, 9, 10} : Rounds{2, 24};
  KVANT_ASSIGN_OR_RETURN(const auto seconds, Interleave(turns, rounds, "measure", console));
  BenchReport report = ReportOverMemcpy(turns, seconds, work.payload_bytes());
  report.isa = flags.cpu.isa;
  report.threads = flags.cpu.threads;
  ReportColumn packed{"packed_mb", "packed MB", 1, {std::nullopt}};
  for (size_t i = 0; i < precisions.size(); ++i) {
    packed.values.emplace_back(static_cast<double>(work.packed_bytes(i)) / 1e6);
  }
  report.columns.push_back(std::move(packed));
  report.facts = {{"head_dim", flags.head_dim}};
  report.notes = {fmt::format("fp16 keys and values of {}: bytes and rates are theirs", flags.head_dim)};
  console.PrintJson(ToJson(report));
  console.PrintText(ToText(report));
  return OkStatus();
}

Status RunOnGpu(const PackFlags& flags, Console& console) {
  if (flags.kv != PackFlags().kv) {
    return {StatusCode::kInvalidArgument, "--kv chooses on the CPU; on the GPU a fixed set of formats is measured"};
  }
  return RunGpuPack({flags.head_dim, flags.memory.quick}, console);
}

}  // namespace

void AddDevice(CLI::App& command, std::string& device) {
  AddOption(command, "--device", device, "Whose kernels are measured")->check(CLI::IsMember({"cpu", "cuda"}));
}

void AddPackBench(CLI::App& bench, Work* chosen) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* command = AddBench(
      bench, "pack", "Rows into packed pages (on the GPU also token tiers), against a copy",
      [flags](Console& console) {
        return flags->device == "cuda" ? RunOnGpu(*flags, console) : RunPackBench(*flags, console);
      },
      chosen);
  AddOption(*command, "--kv", flags->kv, "Precisions of pair pages, separated by commas");
  AddDevice(*command, flags->device);
  AddHeadDim(*command, flags->head_dim);
  AddCpuFlags(*command, flags->cpu);
  AddMemoryFlags(*command, flags->memory);
}

}  // namespace kvant::cli
