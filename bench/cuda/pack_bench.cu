// Packing and token-tier codecs beside a plain device copy of the same fp16 input, interleaved, larger than the L2.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention_case.h"
#include "device_memory.h"
#include "kvant/kernels/cuda/pack.h"

namespace kvant::cuda_bench {
namespace {

using namespace kvant::cuda_test;  // NOLINT: the bench is made of the test's parts
using codec::TokenCodec;

constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kPages = 1024;
constexpr size_t kRows = size_t{kPages} * 128 * kHeads;
constexpr size_t kSideBytes = kRows * kHeadDim * 2;  // keys, or values: 256 MiB
constexpr int kRepeats = 9;

struct Arm {
  std::string name;
  size_t input_bytes;  ///< fp16 bytes encoded or decoded
  size_t moved_bytes;
  std::function<Status()> run;
  std::vector<double> times = {};
};

void Must(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }
}

double TimeUs(const std::function<Status()>& run) {
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  Check(cudaEventRecord(begin), "event");
  Must(run());
  Check(cudaEventRecord(end), "event");
  Check(cudaEventSynchronize(end), "pack");
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end), "event");
  Check(cudaEventDestroy(begin), "event");
  Check(cudaEventDestroy(end), "event");
  return double{ms} * 1e3;
}

// Random rows, the same few megabytes over and over.
std::unique_ptr<DeviceBuffer> RandomRows(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> host(size_t{1} << 21);
  for (Half& h : host) h = ToHalf(normal(random));
  auto buffer = std::make_unique<DeviceBuffer>(kSideBytes);
  for (size_t at = 0; at < kSideBytes; at += host.size() * 2) {
    const size_t bytes = std::min(host.size() * 2, kSideBytes - at);
    Check(cudaMemcpy(buffer->data() + at, host.data(), bytes, cudaMemcpyHostToDevice), "rows");
  }
  return buffer;
}

struct Memory {
  std::unique_ptr<DeviceBuffer> keys = RandomRows(1);
  std::unique_ptr<DeviceBuffer> values = RandomRows(2);
  std::unique_ptr<DeviceBuffer> copy = std::make_unique<DeviceBuffer>(2 * kSideBytes);
  std::vector<std::unique_ptr<DeviceBuffer>> kept;

  std::byte* Keep(size_t bytes) {
    kept.push_back(std::make_unique<DeviceBuffer>(bytes));
    return kept.back()->data();
  }
  template <typename T>
  T* Upload(const std::vector<T>& host) {
    kept.push_back(std::make_unique<DeviceBuffer>(host));
    return kept.back()->data<T>();
  }
};

Arm CopyArm(Memory& memory) {
  return {"memcpy", 2 * kSideBytes, 4 * kSideBytes, [&memory]() -> Status {
            Check(cudaMemcpyAsync(memory.copy->data(), memory.keys->data(), kSideBytes, cudaMemcpyDeviceToDevice), "copy");
            Check(cudaMemcpyAsync(memory.copy->data() + kSideBytes, memory.values->data(), kSideBytes,
                                  cudaMemcpyDeviceToDevice),
                  "copy");
            return OkStatus();
          }};
}

Arm PackArm(Memory& memory, const std::string& name, const codec::WidthMap& map, uint32_t value_bits,
            codec::PairRule rule = codec::PairRule::kMidRise) {
  const codec::PairFormat format{kHeadDim, 128, value_bits, kHeadDim, rule, rule};
  const auto layout = kernels::cuda::PairDeviceLayout::Make(format, map).value();
  std::vector<kernels::cuda::PairPackJob> jobs;
  for (uint32_t page = 0; page < kPages; ++page) jobs.push_back({uint64_t{page} * 128, page, 0});
  kernels::cuda::PairPack pack;
  pack.format = format;
  pack.num_kv_heads = kHeads;
  pack.num_jobs = kPages;
  pack.jobs = memory.Upload(jobs);
  pack.keys = memory.keys->data();
  pack.values = memory.values->data();
  pack.maps = memory.Upload(std::vector<kernels::cuda::PairDeviceMap>(kHeads, layout.DeviceMap()));
  pack.record_bytes = layout.record_bytes();
  pack.page_bytes = pack.record_bytes * kHeads;
  pack.pool = memory.Keep(pack.page_bytes * kPages);
  return {name, 2 * kSideBytes, 2 * kSideBytes + pack.page_bytes * kPages,
          [pack] { return kernels::cuda::PackPairPages(pack, {}); }};
}

/// Keys and values of whole pages into token tiles, equalized or not.
Arm StoreArm(Memory& memory, TokenCodec codec, bool equalized) {
  std::vector<kernels::cuda::TileStoreJob> jobs;
  for (uint32_t page = 0; page < kPages; ++page) {
    for (uint32_t tile = 0; tile < 8; ++tile) {
      jobs.push_back({uint64_t{page} * 128 + 16 * tile, page, tile, 0, 16, equalized ? 0U : 0xFFFFFFFFU});
    }
  }
  std::vector<Half> map;
  for (size_t i = 0; i < size_t{2} * kHeads * kHeadDim; ++i) map.push_back(ToHalf(i / kHeadDim % 2 == 0 ? 0.25F : 1.5F));
  kernels::cuda::TileStore store;
  store.codec = codec;
  store.head_dim = kHeadDim;
  store.num_kv_heads = kHeads;
  store.num_jobs = static_cast<uint32_t>(jobs.size());
  store.jobs = memory.Upload(jobs);
  store.keys = memory.keys->data();
  store.values = memory.values->data();
  store.equalization = memory.Upload(map);
  store.record_bytes = 8 * kernels::cuda::TokenTileBytes(codec, kHeadDim);
  store.page_bytes = store.record_bytes * kHeads;
  store.pool = memory.Keep(store.page_bytes * kPages);
  return {"store " + std::string(codec::TokenCodecName(codec)) + (equalized ? " equalized" : ""), 2 * kSideBytes,
          2 * kSideBytes + store.page_bytes * kPages, [store] { return kernels::cuda::StoreTiles(store, {}); }};
}

void AddRowArms(Memory& memory, TokenCodec codec, std::vector<Arm>& arms) {
  const size_t row_bytes = codec::RowCodeBytes(codec, kHeadDim);
  const kernels::cuda::DeviceRows rows{reinterpret_cast<uint8_t*>(memory.Keep(kRows * row_bytes)),
                                       reinterpret_cast<uint16_t*>(memory.Keep(kRows * 2)),
                                       reinterpret_cast<uint16_t*>(memory.Keep(kRows * 2))};
  const std::string name(codec::TokenCodecName(codec));
  const size_t moved = kSideBytes + kRows * codec::RowBytes(codec, kHeadDim);
  const void* src = memory.keys->data();
  void* dst = memory.copy->data();
  arms.push_back({"encode " + name, kSideBytes, moved,
                  [=] { return kernels::cuda::EncodeRows(codec, kHeadDim, src, kRows, rows, {}); }});
  arms.push_back({"decode " + name, kSideBytes, moved,
                  [=] { return kernels::cuda::DecodeRows(codec, kHeadDim, rows, kRows, dst, {}); }});
}

void Run() {
  Memory memory;
  std::vector<Arm> arms;
  arms.push_back(CopyArm(memory));
  arms.push_back(PackArm(memory, "pack pnmix 3/1 v=2", HalfThreeOne(kHeadDim, 1), 2));
  arms.push_back(PackArm(memory, "pack pairs:2.0 v=4", MixedMap(kHeadDim, 2.0, 8), 4));
  arms.push_back(PackArm(memory, "pack pnmix 3/1 v=2 min-max", HalfThreeOne(kHeadDim, 1), 2, codec::PairRule::kMinMax));
  arms.push_back(StoreArm(memory, TokenCodec::kFp16, false));
  for (const TokenCodec codec : {TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine}) {
    arms.push_back(StoreArm(memory, codec, false));
    arms.push_back(StoreArm(memory, codec, true));
    AddRowArms(memory, codec, arms);
  }
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    for (size_t k = 0; k < arms.size(); ++k) {
      Arm& arm = arms[repeat % 2 == 0 ? k : arms.size() - 1 - k];
      const double us = TimeUs(arm.run);
      if (repeat > 0) arm.times.push_back(us);
    }
  }
  double copy_rate = 0;
  std::printf("%-28s %9s %7s %14s %12s %10s\n", "arm", "us", "spread", "payload GB/s", "moved GB/s", "x memcpy");
  for (Arm& arm : arms) {
    std::sort(arm.times.begin(), arm.times.end());
    const double us = arm.times[arm.times.size() / 2];
    const double rate = static_cast<double>(arm.input_bytes) / us / 1e3;
    if (copy_rate == 0) copy_rate = rate;
    std::printf("%-28s %9.1f %6.1f%% %14.1f %12.1f %10.2f\n", arm.name.c_str(), us,
                (arm.times.back() - arm.times.front()) / us * 100, rate, static_cast<double>(arm.moved_bytes) / us / 1e3,
                rate / copy_rate);
  }
}

}  // namespace
}  // namespace kvant::cuda_bench

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  kvant::cuda_bench::Run();
  return 0;
}
