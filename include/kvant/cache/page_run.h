#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/cache/memory.h"
#include "kvant/codec/token_page.h"

namespace kvant::cache {

/// Consecutive tokens of one layer in one format: a list of pages, each with a record per KV head.
/// Pages are zeroed when made, so slots without a token hold code 0 and scale 0.
///
/// Threads  records of different KV heads may be written at once; growing and shrinking is for one thread
class PageRun {
 public:
  PageRun(codec::TokenPageLayout layout, uint32_t num_kv_heads, MemoryAccount* account);
  /// Records of another format: `capacity` tokens in `record_bytes` bytes.
  PageRun(uint32_t capacity, size_t record_bytes, uint32_t num_kv_heads, MemoryAccount* account);
  ~PageRun();
  PageRun(PageRun&& other) noexcept;
  PageRun& operator=(PageRun&& other) noexcept;
  /// The same tokens in the same pages: a page is copied when one of the runs adds tokens to it.
  PageRun Fork() const;

  /// Of records of another format only capacity and record_bytes are set.
  const codec::TokenPageLayout& layout() const { return layout_; }
  uint32_t num_tokens() const { return num_tokens_; }
  /// Tokens at the front whose pages were released: a multiple of the capacity.
  uint32_t num_released() const { return released_pages_ * layout_.capacity; }
  uint64_t allocated_bytes() const { return page_bytes_ * (pages_.size() - released_pages_); }
  std::span<const std::byte* const> pages() const { return {pages_.data(), pages_.size()}; }
  size_t record_offset(uint32_t kv_head) const { return layout_.record_bytes * kv_head; }

  /// Add slots for `count` tokens; their contents are to be stored before anyone reads them. Only slots that were added
  /// are written to.
  /// Errors  kCapacityExceeded, kOutOfMemory; the run is then as before
  Status Extend(uint32_t count);
  /// Add slots for `count` tokens that nobody will read: pages that hold nothing else are released from the start.
  /// Requires no tokens. Errors  as Extend
  Status Skip(uint32_t count);
  /// Take the last `count` tokens away again; pages that hold no token are freed.
  void Shrink(uint32_t count);
  /// Free the pages that hold no slot from `token` on. Their tokens keep their numbers; nobody may read them.
  void Release(uint32_t token);

  std::byte* record(uint32_t page, uint32_t kv_head);
  const std::byte* record(uint32_t page, uint32_t kv_head) const;

 private:
  Status AddPage();
  Status OwnLastPage();
  void FreePage(const std::byte* page);
  void FreePages(size_t keep);

  codec::TokenPageLayout layout_;
  uint64_t page_bytes_ = 0;
  MemoryAccount* account_ = nullptr;
  std::vector<const std::byte*> pages_;  ///< null where released
  uint32_t released_pages_ = 0;
  uint32_t num_tokens_ = 0;
};

/// Calls f(page, first_slot, count, offset) for each piece of [first, first + count) that lies in one page.
template <typename F>
void ForEachPiece(uint32_t capacity, uint32_t first, uint32_t count, F&& f) {
  for (uint32_t done = 0; done < count;) {
    const uint32_t slot = (first + done) % capacity;
    const uint32_t piece = count - done < capacity - slot ? count - done : capacity - slot;
    f((first + done) / capacity, slot, piece, done);
    done += piece;
  }
}

}  // namespace kvant::cache
