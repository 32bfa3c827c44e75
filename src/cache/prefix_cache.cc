#include "kvant/cache/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "kvant/base/check.h"

namespace kvant::cache {
namespace {

size_t CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

PrefixCache::PrefixCache(MemoryAccount* account) : account_(account) {
  account_->SetReclaim([this] { return DropOldest(); });
}

PrefixCache::~PrefixCache() { account_->SetReclaim({}); }

std::optional<Sequence> PrefixCache::Find(const PrefixKey& key, std::span<const int32_t> tokens) {
  const std::lock_guard lock(mutex_);
  auto best = entries_.end();
  uint32_t longest = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->key == key) {
      const size_t common = std::min(CommonTokens(entry->tokens, tokens), tokens.size() - 1);
      const uint32_t reusable = entry->sequence.ReusableTokens(static_cast<uint32_t>(common));
      if (reusable <= common && reusable > longest) {
        longest = reusable;
        best = entry;
      }
    }
  }
  if (best == entries_.end()) {
    return std::nullopt;
  }
  entries_.splice(entries_.begin(), entries_, best);
  Sequence fork = best->sequence.Fork();
  fork.KeepFirst(longest);
  return fork;
}

void PrefixCache::Keep(const PrefixKey& key, std::span<const int32_t> tokens, const Sequence& sequence) {
  KVANT_CHECK(tokens.size() == sequence.num_tokens(), "a token for each position");
  if (sequence.precision().DependsOnPrompt()) {
    return;
  }
  // Encoded tokens, and no fp16 residual: a page takes its place when it is full.
  const codec::TokenSplit split = sequence.layer(0).split();
  const uint32_t wanted = sequence.precision().is_exact() ? split.total() : split.num_sinks + split.num_encoded;
  const uint32_t count = sequence.ReusableTokens(wanted);
  if (count == 0 || count > wanted) {
    return;
  }
  Entry kept{key, {tokens.begin(), tokens.begin() + count}, sequence.Fork()};
  kept.sequence.KeepFirst(count);
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const size_t common = entry->key == key ? CommonTokens(entry->tokens, kept.tokens) : 0;
    if (common > 0 && common == kept.tokens.size()) {
      entries_.splice(entries_.begin(), entries_, entry);
      return;
    }
    entry = common > 0 && common == entry->tokens.size() ? entries_.erase(entry) : std::next(entry);
  }
  entries_.push_front(std::move(kept));
}

bool PrefixCache::DropOldest() {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) {
    return false;
  }
  entries_.pop_back();
  return true;
}

size_t PrefixCache::num_kept() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace kvant::cache
