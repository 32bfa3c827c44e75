#pragma once

#include <cstdint>

#include "kvant/engine/engine.h"
#include "kvant/transfer/answer.h"

namespace kvant::engine {

/// Raises the tokens of a received prompt while its answer is decoded: watches which of them the first steps attend to,
/// asks for those, and takes the planes in between two steps.
class Refiner {
 public:
  /// Without an offer it does nothing. `giver` outlives it.
  explicit Refiner(transfer::AnswerGiver* giver) : giver_(giver) {}

  /// Whether what is offered can be of this sequence, as it was received; before the first step.
  /// Errors  kCorruption
  Status CheckOffer(const cache::Sequence& sequence) const;

  /// Whether the coming step's attention is to be measured, and told.
  bool wants_mass() const { return giver_->offer().has_value() && observed_steps_ < kObservedSteps; }
  Status Observe(const cache::Sequence& sequence, const AttentionMass& mass);
  /// Take in what has come. Between two steps.
  Status Adopt(cache::Sequence& sequence, ThreadPool* pool);

 private:
  static constexpr uint32_t kObservedSteps = 4;

  Status Ask(const cache::Sequence& sequence);
  Status AskLayer(const cache::Sequence& sequence, uint32_t layer, const codec::TierCounts& target);

  transfer::AnswerGiver* giver_;
  uint32_t observed_steps_ = 0;
  AttentionMass mass_;  ///< summed over the observed steps
};

}  // namespace kvant::engine
