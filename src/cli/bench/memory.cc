#include "cli/bench/memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>

namespace kvant::cli {
namespace {

// Sixteen independent sums: the additions never wait for each other, whatever the vector width.
uint64_t SumOf(std::span<const std::byte> bytes) {
  constexpr size_t kLanes = 16;
  std::array<uint64_t, kLanes> sums{};
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  for (size_t i = 0; i + kLanes <= bytes.size() / sizeof(uint64_t); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += words[i + lane];
    }
  }
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

}  // namespace

uint64_t MemoryFlags::BytesOfFormat(uint64_t usual, uint64_t quick_usual) const {
  if (megabytes > 0) {
    return megabytes * 1'000'000;
  }
  const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or -1 where the system does not say
  return std::max(quick ? quick_usual : usual, 2 * static_cast<uint64_t>(std::max(last_level, 0L)));
}

void AddMemoryFlags(CLI::App& command, MemoryFlags& flags) {
  AddOption(command, "--memory-mb", flags.megabytes,
            "Megabytes that each format takes (default: more than the caches hold)")
      ->default_str("")
      ->check(InRange(1U, 1U << 20));
  AddSwitch(command, "--quick", flags.quick, "Fewer rounds over less memory, for a look: ends within 45 s");
}

std::vector<Half> RandomHalves(size_t count, float deviation, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<Half> halves(count);
  for (Half& half : halves) {
    half = ToHalf(normal(generator));
  }
  return halves;
}

Result<ReadProbe> ReadProbe::Allocate(uint64_t bytes, ThreadPool* pool) {
  KVANT_ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(bytes));
  std::memset(memory.bytes().data(), 1, memory.size());
  return ReadProbe(std::move(memory), pool);
}

ReadProbe::ReadProbe(Buffer memory, ThreadPool* pool)
    : memory_(std::move(memory)),
      pool_(pool),
      sums_(static_cast<size_t>(pool->num_threads())),
      share_(memory_.size() / kParts / sums_.size() / Buffer::kAlignment * Buffer::kAlignment) {}

void ReadProbe::Read(uint32_t round) {
  const size_t first = round % kParts * bytes_per_call();
  pool_->ParallelFor(sums_.size(), [&](size_t index, int) {
    sums_[index] += SumOf(memory_.bytes().subspan(first + index * share_, share_));
  });
}

}  // namespace kvant::cli
