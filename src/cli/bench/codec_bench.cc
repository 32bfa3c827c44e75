#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/codec_work.h"
#include "cli/bench/gpu_bench.h"
#include "cli/bench/memory.h"
#include "cli/bench/report.h"
#include "cli/engine_flags.h"
#include "cli/precision_list.h"

namespace kvant::cli {
namespace {

struct CodecFlags {
  EngineFlags cpu;
  std::string device = "cpu";
  std::string kv = "int8,int4,eq=off,int4";
  uint32_t head_dim = 128;
  MemoryFlags memory;
};

constexpr uint64_t kPayloadBytes = uint64_t{1} << 30;
constexpr uint64_t kQuickPayloadBytes = uint64_t{1} << 29;

Result<std::vector<codec::TokenCodec>> CodecsOf(const std::string& kv) {
  KVANT_ASSIGN_OR_RETURN(const std::vector<codec::Precision> precisions, ParsePlainPrecisionList(kv));
  std::vector<codec::TokenCodec> codecs;
  for (const codec::Precision& precision : precisions) {
    if (std::find(codecs.begin(), codecs.end(), precision.codec) == codecs.end()) {
      codecs.push_back(precision.codec);
    }
  }
  return codecs;
}

std::vector<Turn> TurnsOf(CodecWork& work) {
  std::vector<Turn> turns;
  const auto add = [&](std::string name, std::function<void()> run) {
    turns.push_back({std::move(name), [run = std::move(run)](uint32_t) {
                       run();
                       return OkStatus();
                     }});
  };
  add("memcpy", [&work] { work.Copy(); });
  for (size_t i = 0; i < work.num_codecs(); ++i) {
    const std::string name(codec::TokenCodecName(work.codec(i)));
    add("encode " + name, [&work, i] { work.Encode(i); });
    add("decode " + name, [&work, i] { work.Decode(i); });
  }
  return turns;
}

Status RunCodecBench(const CodecFlags& flags, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const std::vector<codec::TokenCodec> codecs, CodecsOf(flags.kv));
  KVANT_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ParseIsa(flags.cpu.isa));
  ThreadPool pool(flags.cpu.threads);
  console.ShowProgress("prepare", 0, 1, "rows");
  KVANT_ASSIGN_OR_RETURN(CodecWork work, CodecWork::Make(codecs, flags.head_dim,
                                                         flags.memory.BytesOfFormat(kPayloadBytes, kQuickPayloadBytes),
                                                         kernels::RowKernelsOf(isa), &pool));
  const std::vector<Turn> turns = TurnsOf(work);
  const Rounds rounds = flags.memory.quick ? Rounds{1, 9, 10} : Rounds{2, 24};
  KVANT_ASSIGN_OR_RETURN(const auto seconds, Interleave(turns, rounds, "measure", console));
  BenchReport report = ReportOverMemcpy(turns, seconds, work.payload_bytes());
  report.isa = flags.cpu.isa;
  report.threads = flags.cpu.threads;
  report.facts = {{"head_dim", flags.head_dim}};
  report.notes = {fmt::format("fp16 rows of {}: bytes and rates are theirs, in either direction", flags.head_dim)};
  console.PrintJson(ToJson(report));
  console.PrintText(ToText(report));
  return OkStatus();
}

Status RunOnGpu(const CodecFlags& flags, Console& console) {
  if (flags.kv != CodecFlags().kv) {
    return {StatusCode::kInvalidArgument, "--kv chooses on the CPU; on the GPU all codecs are measured"};
  }
  return RunGpuCodec({flags.head_dim, flags.memory.quick}, console);
}

}  // namespace

void AddCodecBench(CLI::App& bench, Work* chosen) {
  auto flags = std::make_shared<CodecFlags>();
  CLI::App* command = AddBench(
      bench, "codec", "Encode and decode fp16 rows, against memcpy",
      [flags](Console& console) {
        return flags->device == "cuda" ? RunOnGpu(*flags, console) : RunCodecBench(*flags, console);
      },
      chosen);
  AddOption(*command, "--kv", flags->kv, "Precisions whose codecs are measured, separated by commas");
  AddDevice(*command, flags->device);
  AddHeadDim(*command, flags->head_dim);
  AddCpuFlags(*command, flags->cpu);
  AddMemoryFlags(*command, flags->memory);
}

}  // namespace kvant::cli
