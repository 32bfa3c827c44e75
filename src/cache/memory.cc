#include "kvant/cache/memory.h"

#include "kvant/base/check.h"

namespace kvant::cache {

Status MemoryAccount::Reserve(uint64_t bytes) {
  uint64_t in_use = in_use_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ - in_use) {
      return {StatusCode::kCapacityExceeded, "KV cache full: " + std::to_string(bytes) + " bytes more than the " +
                                                 std::to_string(in_use) + " in use would exceed the limit of " +
                                                 std::to_string(limit_bytes_)};
    }
  } while (!in_use_bytes_.compare_exchange_weak(in_use, in_use + bytes, std::memory_order_relaxed));
  uint64_t peak = peak_bytes_.load(std::memory_order_relaxed);
  while (peak < in_use + bytes && !peak_bytes_.compare_exchange_weak(peak, in_use + bytes, std::memory_order_relaxed)) {
  }
  return OkStatus();
}

void MemoryAccount::Release(uint64_t bytes) {
  const uint64_t before = in_use_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  KVANT_CHECK(before >= bytes, "only what was reserved is released");
}

}  // namespace kvant::cache
