#pragma once

#include "kernels/cuda/run_worker.cuh"

namespace kvant::kernels::cuda {

template <class Config, class... Tiles>
__global__ void __launch_bounds__(Config::kWarps * 32, 1) DecodeKernel(const __grid_constant__ DecodeParams params) {
  using LoaderType = Loader<Config, Tiles...>;
  const uint32_t warp = __shfl_sync(~0U, threadIdx.x / 32, 0);  // uniform, and the compiler knows
  const Lane lane = ThisLane();
  const uint32_t ring_bytes = Config::kStages * params.stage_bytes;
  const uint32_t ring = Config::kRings + warp * ring_bytes;
  const uint32_t memory = warp * sizeof(typename LoaderType::Memory);
  uint32_t index = blockIdx.x * Config::kWarps + warp;
  DecodeRun& run = Shared<typename LoaderType::Memory>(memory).run;
  const auto load_run = [&] {
    __syncwarp();
    if (lane.id < sizeof(DecodeRun) / 16) {
      reinterpret_cast<uint4*>(&run)[lane.id] = __ldg(reinterpret_cast<const uint4*>(params.runs + index) + lane.id);
    }
    __syncwarp();
  };
  load_run();
  LoaderType loader(params, memory, SharedAddress(g_shared + ring),
                    SharedAddress(g_shared + Config::kBarriers) + warp * Config::kStages * 8, lane);
  // Queries and their order are asked for before the first pages, behind which they would wait.
  QueryOrder<Config::kHeadDim> order = {};
  const auto load_order = [&] {
    if constexpr ((IsPair<Tiles>::value || ...)) {
      if (run.format == DecodeFormat::kPair) order.Load(MapOf(params, run), lane);
    }
  };
  load_order();
  const auto fetched = Config::Rows::Fetch(params);
  // What a block needs at first beside data, its instructions above all, would wait behind the data it has asked for:
  // some warps begin early, so that the memory is not idle, the others when they have their queries.
  int primed = 0;
  if (warp % 4 == 0) loader.Issue(primed++);
  if (threadIdx.x < kOnesBytes / 4) Shared<uint32_t>(Config::kOnes + 4 * threadIdx.x) = 0x3C003C00U;
  BlockEnd<Config::kWarps>& block_end = Shared<BlockEnd<Config::kWarps>>(Config::kBlockEnd);
  block_end.Load(params);
  Shared<typename Config::Rows>(Config::kRows).Store(fetched, params.q_scale);
  __syncthreads();

  SoftmaxState<Config::kHeadDim> state;
  int stage = 0;
  uint32_t parity = 0;
  while (run.num_tiles != 0) {
    if (run.begins_item != 0) state.Reset();
    // Values of some formats are stored rotated: the sums are turned into the run's basis and back.
    const bool rotated = (params.rotated >> static_cast<int>(run.format) & 1U) != 0;
    if (rotated && run.begins_item == 0) state.Hadamard();
    ForFormat<Tiles...>(run.format, [&](auto* tiles) {
      using T = std::remove_pointer_t<decltype(tiles)>;
      RunWorker<Config, T, LoaderType>{params, ring, memory, Config::kOnes, lane}.Run(order, state, loader, primed,
                                                                                      stage, parity);
    });
    if (rotated) state.Hadamard();
    FinishRun<Config::kHeadDim>(params, run, state, ring, lane);
    index = run.next;
    if (index == DecodeRun::kNone) break;
    load_run();
    load_order();
  }
  MergeGroups<Config::kHeadDim, Config::kWarps>(params, block_end, Config::kRings, ring_bytes);
}

}  // namespace kvant::kernels::cuda
