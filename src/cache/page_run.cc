#include "kvant/cache/page_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvant/base/check.h"

namespace kvant::cache {
PageRun::PageRun(codec::TokenPageLayout layout, uint32_t num_kv_heads, MemoryAccount* account)
    : layout_(layout), page_bytes_(RoundUp(layout.record_bytes * num_kv_heads, 64)), account_(account) {}

PageRun::PageRun(uint32_t capacity, size_t record_bytes, uint32_t num_kv_heads, MemoryAccount* account)
    : PageRun({.capacity = capacity, .record_bytes = record_bytes}, num_kv_heads, account) {}

PageRun::~PageRun() { FreePages(0); }

PageRun::PageRun(PageRun&& other) noexcept
    : layout_(other.layout_),
      page_bytes_(other.page_bytes_),
      account_(other.account_),
      pages_(std::exchange(other.pages_, {})),
      released_pages_(std::exchange(other.released_pages_, 0)),
      num_tokens_(std::exchange(other.num_tokens_, 0)) {}

PageRun& PageRun::operator=(PageRun&& other) noexcept {
  if (this != &other) {
    FreePages(0);
    layout_ = other.layout_;
    page_bytes_ = other.page_bytes_;
    account_ = other.account_;
    pages_ = std::exchange(other.pages_, {});
    released_pages_ = std::exchange(other.released_pages_, 0);
    num_tokens_ = std::exchange(other.num_tokens_, 0);
  }
  return *this;
}

PageRun PageRun::Fork() const {
  PageRun fork(layout_, 1, account_);
  fork.page_bytes_ = page_bytes_;
  fork.pages_ = pages_;
  fork.released_pages_ = released_pages_;
  fork.num_tokens_ = num_tokens_;
  for (size_t i = released_pages_; i < pages_.size(); ++i) {
    account_->SharePage(pages_[i]);
  }
  return fork;
}

// The page that has slots left is this run's alone afterwards.
Status PageRun::OwnLastPage() {
  const size_t last = num_tokens_ / layout_.capacity;
  if (last >= pages_.size() || pages_[last] == nullptr || !account_->IsShared(pages_[last])) {
    return OkStatus();
  }
  KVANT_ASSIGN_OR_RETURN(std::byte * page, account_->AllocatePage(page_bytes_));
  std::memcpy(page, pages_[last], page_bytes_);
  FreePage(std::exchange(pages_[last], page));
  return OkStatus();
}

Status PageRun::Extend(uint32_t count) {
  if (count > 0) {
    KVANT_RETURN_IF_ERROR(OwnLastPage());
  }
  const size_t pages_before = pages_.size();
  while (pages_.size() * layout_.capacity < size_t{num_tokens_} + count) {
    if (Status status = AddPage(); !status.ok()) {
      FreePages(pages_before);
      return status;
    }
  }
  num_tokens_ += count;
  return OkStatus();
}

Status PageRun::Skip(uint32_t count) {
  KVANT_CHECK(num_tokens_ == 0, "what is skipped comes first");
  released_pages_ = count / layout_.capacity;
  pages_.assign(released_pages_, nullptr);
  num_tokens_ = released_pages_ * layout_.capacity;
  Status status = Extend(count - num_tokens_);
  if (!status.ok()) {
    Shrink(num_tokens_);
  }
  return status;
}

void PageRun::Shrink(uint32_t count) {
  KVANT_CHECK(count <= num_tokens_, "no more tokens can go than are there");
  num_tokens_ -= count;
  FreePages(CeilDiv(num_tokens_, layout_.capacity));
}

void PageRun::Release(uint32_t token) {
  const uint32_t end = std::min(token / layout_.capacity, static_cast<uint32_t>(pages_.size()));
  for (; released_pages_ < end; ++released_pages_) {
    FreePage(std::exchange(pages_[released_pages_], nullptr));
  }
}

Status PageRun::AddPage() {
  KVANT_ASSIGN_OR_RETURN(const std::byte* page, account_->AllocatePage(page_bytes_));
  pages_.push_back(page);
  return OkStatus();
}

void PageRun::FreePage(const std::byte* page) {
  // NOLINTNEXTLINE: allocated by AddPage, const for the readers' span
  account_->FreePage(const_cast<std::byte*>(page), page_bytes_);
}

void PageRun::FreePages(size_t keep) {
  for (size_t i = std::max<size_t>(keep, released_pages_); i < pages_.size(); ++i) {
    FreePage(pages_[i]);
  }
  if (keep < pages_.size()) {
    pages_.resize(keep);
  }
  released_pages_ = std::min(released_pages_, static_cast<uint32_t>(pages_.size()));
}

std::byte* PageRun::record(uint32_t page, uint32_t kv_head) {
  return const_cast<std::byte*>(std::as_const(*this).record(page, kv_head));  // NOLINT: this run owns the page
}

const std::byte* PageRun::record(uint32_t page, uint32_t kv_head) const {
  return pages_[page] + record_offset(kv_head);
}

}  // namespace kvant::cache
