#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvant/cache/sequence.h"

namespace kvant::cache {

/// What two sequences must share beside tokens for their pages to be the same bytes.
struct PrefixKey {
  uint64_t model = 0;     ///< fingerprint
  uint64_t maps = 0;      ///< the profile's number; 0 where there are no maps
  std::string precision;  ///< its word
  friend bool operator==(const PrefixKey&, const PrefixKey&) = default;
};

/// Sequences that were computed, kept so that a prompt which begins like one of them takes its pages instead of
/// computing them. Pages are shared, never copied: a beginning that many prompts have is there once.
///
/// Only precisions whose codes depend on no later token can be kept: fp16, maps of the model, or tiers without maps
/// (codec::Precision::DependsOnPrompt). When the account is full the sequence that was longest not asked for goes
/// first.
///
/// Threads  any number; but the account's pages are asked for only while this lives or after SetReclaim
class PrefixCache {
 public:
  /// `account`: of all sequences that are kept or made here; outlives this. This sets its reclaim.
  explicit PrefixCache(MemoryAccount* account);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  MemoryAccount* account() const { return account_; }

  /// A sequence with the longest kept beginning of `tokens` that leaves at least the last one to be computed; nothing
  /// where none begins like them.
  std::optional<Sequence> Find(const PrefixKey& key, std::span<const int32_t> tokens);
  /// Keep what later prompts can take of a sequence that holds `tokens`. Where it cannot be shared, nothing is kept.
  /// Requires tokens.size() == sequence.num_tokens(), a sequence of this account
  void Keep(const PrefixKey& key, std::span<const int32_t> tokens, const Sequence& sequence);
  /// False where there was none.
  bool DropOldest();
  size_t num_kept() const;

 private:
  struct Entry {
    PrefixKey key;
    std::vector<int32_t> tokens;
    Sequence sequence;
  };

  MemoryAccount* account_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  ///< the one asked for last stands first
};

}  // namespace kvant::cache
