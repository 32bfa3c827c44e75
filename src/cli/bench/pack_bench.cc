#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/gpu_bench.h"

namespace kvant::cli {
namespace {

struct PackFlags {
  std::string device = "cuda";
  GpuPages pages;
};

Status RunPackBench(const PackFlags& flags, Console& console) {
  if (flags.device != "cuda") {
    return {StatusCode::kInvalidArgument, "packing is measured on the GPU: --device cuda"};
  }
  return RunGpuPack(flags.pages, console);
}

}  // namespace

void AddDevice(CLI::App& command, std::string& device) {
  AddOption(command, "--device", device, "Whose kernels are measured")->check(CLI::IsMember({"cpu", "cuda"}));
}

void AddPackBench(CLI::App& bench, Work* chosen) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* command = AddBench(
      bench, "pack", "Rows into packed pages and token tiers on the GPU, against a device copy",
      [flags](Console& console) { return RunPackBench(*flags, console); }, chosen);
  AddDevice(*command, flags->device);
  AddHeadDim(*command, flags->pages.head_dim);
  AddSwitch(*command, "--quick", flags->pages.quick, "Fewer rounds");
}

}  // namespace kvant::cli
