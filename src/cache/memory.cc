#include "kvant/cache/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kvant/base/check.h"
#include "kvant/base/checked.h"

namespace kvant::cache {
namespace {

constexpr uint64_t kSlabBytes = uint64_t{2} << 20;  // one huge page of x86-64

}  // namespace

MemoryAccount::~MemoryAccount() {
  KVANT_CHECK(in_use_bytes_ == 0, "an account outlives the sequences that draw on it");
  FreeSlabs();
}

Status MemoryAccount::Reclaiming(const std::function<Status()>& attempt) {
  Status status = attempt();
  while (status.code() == StatusCode::kCapacityExceeded && reclaim_ && reclaim_()) {
    status = attempt();
  }
  return status;
}

Status MemoryAccount::CheckRoom(uint64_t bytes) {
  return Reclaiming([&] {
    const std::lock_guard lock(mutex_);
    return CheckRoomLocked(bytes);
  });
}

Status MemoryAccount::CheckRoomLocked(uint64_t bytes) const {
  if (bytes <= limit_bytes_ - in_use_bytes_) {
    return OkStatus();
  }
  return {StatusCode::kCapacityExceeded, "KV cache full: " + std::to_string(bytes) + " bytes more than the " +
                                             std::to_string(in_use_bytes_) + " in use would exceed the limit of " +
                                             std::to_string(limit_bytes_)};
}

Result<std::byte*> MemoryAccount::AllocatePage(uint64_t bytes) {
  KVANT_CHECK(bytes > 0 && bytes % 64 == 0, "records are padded to 64 bytes");
  std::byte* page = nullptr;
  KVANT_RETURN_IF_ERROR(Reclaiming([&]() -> Status {
    KVANT_ASSIGN_OR_RETURN(page, TryAllocatePage(bytes));
    return OkStatus();
  }));
  return page;
}

Result<std::byte*> MemoryAccount::TryAllocatePage(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  KVANT_RETURN_IF_ERROR(CheckRoomLocked(bytes));
  std::vector<std::byte*>& pages = free_pages_[bytes];
  if (pages.empty()) {
    KVANT_RETURN_IF_ERROR(CutSlab(bytes));
  }
  std::byte* page = pages.back();
  pages.pop_back();
  std::memset(page, 0, bytes);
  in_use_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  return page;
}

Status MemoryAccount::CutSlab(uint64_t page_bytes) {
  const uint64_t slab_bytes = RoundUp(page_bytes, kSlabBytes);
  void* slab = std::aligned_alloc(kSlabBytes, slab_bytes);
  if (slab == nullptr) {
    return {StatusCode::kOutOfMemory, "no memory for KV pages: " + std::to_string(slab_bytes) + " bytes"};
  }
  (void)madvise(slab, slab_bytes, MADV_HUGEPAGE);  // a hint: without it everything works, more slowly
  slabs_.push_back(slab);
  std::vector<std::byte*>& pages = free_pages_[page_bytes];
  for (uint64_t begin = slab_bytes / page_bytes * page_bytes; begin > 0; begin -= page_bytes) {
    pages.push_back(static_cast<std::byte*>(slab) + begin - page_bytes);  // so that the first comes off first
  }
  return OkStatus();
}

void MemoryAccount::FreePage(std::byte* page, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto shared = more_owners_.find(page); shared != more_owners_.end()) {
    if (--shared->second == 0) {
      more_owners_.erase(shared);
    }
    return;
  }
  KVANT_CHECK(in_use_bytes_ >= bytes, "only what was allocated is freed");
  in_use_bytes_ -= bytes;
  free_pages_[bytes].push_back(page);
  if (in_use_bytes_ == 0) {
    FreeSlabs();
  }
}

void MemoryAccount::SharePage(const std::byte* page) {
  const std::lock_guard lock(mutex_);
  ++more_owners_[page];
}

bool MemoryAccount::IsShared(const std::byte* page) const {
  const std::lock_guard lock(mutex_);
  return more_owners_.contains(page);
}

void MemoryAccount::FreeSlabs() {
  for (void* slab : slabs_) {
    std::free(slab);
  }
  slabs_.clear();
  free_pages_.clear();
}

uint64_t MemoryAccount::in_use_bytes() const {
  const std::lock_guard lock(mutex_);
  return in_use_bytes_;
}

uint64_t MemoryAccount::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace kvant::cache
