#pragma once

#include <cstdint>
#include <vector>

#include "kvant/cache/sequence.h"
#include "kvant/wire/upgrade.h"

namespace kvant::engine {

/// What the prefill side keeps of a progressive prompt that it has sent: the rows at fp16, from which any missing
/// plane can be made again, and the tiers that the other side has by now.
///
/// Threads  one
class ColdStore {
 public:
  /// `account` holds the prompt's fp16 rows until the store ends.
  ColdStore(cache::Sequence sequence, const codec::Spectrum& spectrum)
      : sequence_(std::move(sequence)), spectrum_(spectrum), tiers_(sequence_.shape().num_layers) {}

  /// Being filled by prefill; later read.
  cache::Sequence& sequence() { return sequence_; }
  /// A layer was sent with these tiers.
  void Keep(uint32_t layer, const codec::TierMap& tiers) { tiers_[layer] = tiers; }

  /// How far every layer may be raised: to the counts of the budget `refine`.
  Result<wire::UpgradeOffer> Offer() const;
  /// The frame that answers a request.
  /// Errors  kInvalidArgument: another shape, another number of tokens, a token that is lowered or was dropped, heads
  ///         that move differently; kCapacityExceeded, kOutOfMemory
  Result<Buffer> Answer(uint64_t session, const wire::UpgradeRequest& request, ThreadPool* pool);

 private:
  cache::Sequence sequence_;
  const codec::Spectrum spectrum_;
  std::vector<codec::TierMap> tiers_;  ///< by layer; empty where nothing was encoded
};

}  // namespace kvant::engine
