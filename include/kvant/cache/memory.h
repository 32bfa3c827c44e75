#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::cache {

/// Memory of KV pages, counted against a limit. Shared by the sequences of one engine.
///
/// Pages are cut from slabs of 2 MiB that ask for huge pages: attention streams through far more memory than a TLB of
/// small pages covers. A freed page serves the next one of its size; slabs go back when the last page is freed.
///
/// Threads  any number
class MemoryAccount {
 public:
  explicit MemoryAccount(uint64_t limit_bytes = UINT64_MAX) : limit_bytes_(limit_bytes) {}
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  /// Whether `bytes` more would be allowed now, after what can be reclaimed was.
  /// Errors  kCapacityExceeded with the bytes asked for, in use and allowed
  Status CheckRoom(uint64_t bytes);

  /// A zeroed page, 64-byte aligned. Requires bytes a multiple of 64
  /// Errors  CheckRoom's; kOutOfMemory; nothing is then counted
  Result<std::byte*> AllocatePage(uint64_t bytes);
  /// `bytes` as it was asked for. Of a page with several owners one is gone.
  void FreePage(std::byte* page, uint64_t bytes);
  /// One owner more. Nobody may write to a page that has several.
  void SharePage(const std::byte* page);
  bool IsShared(const std::byte* page) const;

  /// Called where the limit would be exceeded, until it is not or there is nothing left to free, which `reclaim` says
  /// by false. It frees pages by FreePage; empty: nobody does. Set while no page is asked for.
  void SetReclaim(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }

  /// Bytes of pages that are in use, each counted once, and the most there were.
  uint64_t in_use_bytes() const;
  uint64_t peak_bytes() const;

 private:
  Status CheckRoomLocked(uint64_t bytes) const;
  Result<std::byte*> TryAllocatePage(uint64_t bytes);
  /// Again and again while there is no room and something can be reclaimed.
  Status Reclaiming(const std::function<Status()>& attempt);
  Status CutSlab(uint64_t page_bytes);
  void FreeSlabs();

  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  uint64_t in_use_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  std::vector<void*> slabs_;
  std::map<uint64_t, std::vector<std::byte*>> free_pages_;      ///< by page size
  std::unordered_map<const std::byte*, uint32_t> more_owners_;  ///< than one, of pages that have them
  std::function<bool()> reclaim_;
};

}  // namespace kvant::cache
