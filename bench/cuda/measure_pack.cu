#include <cuda_runtime.h>

#include "clocks.h"
#include "kernels/cuda/head_dim.h"
#include "page_arms.h"
#include "timed_graph.h"

namespace kvant::kernels::cuda {
namespace {

using codec::TokenCodec;
using cuda_bench::PageArm;
using cuda_bench::PageMemory;
using cuda_test::DeviceError;
using cuda_test::Must;

Measured TimeArms(const std::vector<PageArm>& arms, int rounds) {
  for (const PageArm& arm : arms) {
    Must(arm.run());
    cuda_test::Check(cudaDeviceSynchronize(), arm.name.c_str());
    if (!arm.equals_reference()) throw DeviceError({StatusCode::kInternal, arm.name + " differs from the reference"});
  }
  cuda_bench::Stopwatch watch;
  const auto times = cuda_bench::InTurn(arms.size(), rounds,
                                        [&](size_t arm) { return watch.Seconds([&] { Must(arms[arm].run()); }); });
  Measured measured;
  cuda_bench::ReadDevice(&measured);
  for (size_t i = 0; i < arms.size(); ++i) {
    measured.arms.push_back({arms[i].name, times[i], {}, arms[i].bytes, arms[i].moved});
    // The copy's rate, at the bytes that this arm moves.
    measured.arms.back().bound_seconds =
        cuda_bench::Median(times[0]) * static_cast<double>(arms[i].moved) / static_cast<double>(arms[0].moved);
  }
  return measured;
}

Status CheckShape(const CodecMeasurement& wanted) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    return {StatusCode::kNotFound, std::string("no usable GPU: ") + cudaGetErrorString(cudaGetLastError())};
  }
  return ForHeadDim(wanted.head_dim, [](auto) { return OkStatus(); });
}

constexpr TokenCodec kQuantized[] = {TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine};

}  // namespace

Result<Measured> MeasureCodec(const CodecMeasurement& wanted) {
  KVANT_RETURN_IF_ERROR(CheckShape(wanted));
  try {
    PageMemory memory(wanted);
    std::vector<PageArm> arms = {memory.Copy()};
    for (const TokenCodec codec : kQuantized) {
      for (PageArm& arm : memory.Rows(codec)) arms.push_back(std::move(arm));
    }
    return TimeArms(arms, wanted.rounds);
  } catch (const DeviceError& error) {
    return error.status();
  }
}

Result<Measured> MeasurePack(const CodecMeasurement& wanted) {
  KVANT_RETURN_IF_ERROR(CheckShape(wanted));
  try {
    using codec::PairRule;
    PageMemory memory(wanted);
    const uint32_t d = wanted.head_dim;
    std::vector<PageArm> arms = {memory.Copy()};
    const codec::WidthMap half = cuda_test::HalfThreeOne(d, 1);
    const codec::WidthMap mixed = cuda_test::MixedMap(d, 2.0, 8);
    arms.push_back(memory.Pack("pnmix 3/1 v=2", half, 2, PairRule::kMidRise));
    arms.push_back(memory.Pack("pnmix 3/1 v=2 min-max", half, 2, PairRule::kMinMax));
    arms.push_back(memory.Pack("pairs:2.0 v=4", mixed, 4, PairRule::kMidRise));
    arms.push_back(memory.Store(TokenCodec::kFp16, false));
    for (const TokenCodec codec : kQuantized) {
      for (const bool equalized : {false, true}) arms.push_back(memory.Store(codec, equalized));
    }
    arms.push_back(memory.Norms());
    const uint32_t keys = wanted.pages * 128 / 4;
    const uint32_t all = std::min(4096U, wanted.pages * 128 / 8);  // eight query heads must fit into the rows
    arms.push_back(memory.Mass("mass, whole prompt of " + std::to_string(all), all, all));
    arms.push_back(memory.Mass("mass, 256 queries of " + std::to_string(keys), 256, keys));
    return TimeArms(arms, wanted.rounds);
  } catch (const DeviceError& error) {
    return error.status();
  }
}

}  // namespace kvant::kernels::cuda
