#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kvant/base/status.h"

namespace kvant::cache {

/// Bytes of cache memory in use, against a limit. Shared by the sequences of one engine.
///
/// Threads  any number
class MemoryAccount {
 public:
  explicit MemoryAccount(uint64_t limit_bytes = UINT64_MAX) : limit_bytes_(limit_bytes) {}

  /// Errors  kCapacityExceeded with the bytes asked for, in use and allowed; nothing is then counted
  Status Reserve(uint64_t bytes);
  void Release(uint64_t bytes);

  uint64_t in_use_bytes() const { return in_use_bytes_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_bytes_;
  std::atomic<uint64_t> in_use_bytes_{0};
  std::atomic<uint64_t> peak_bytes_{0};
};

}  // namespace kvant::cache
