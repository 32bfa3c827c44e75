#pragma once

#include <vector>

#include "engine/answer.h"
#include "kvant/policy/link_budget.h"
#include "kvant/transfer/sender.h"

namespace kvant::engine {

/// Chooses the budget of each layer of a prompt when the prompt has passed it, so that the first token comes in time:
/// by what the line has carried so far, what waits on it, and how long the layers take to compute. The first layer,
/// before which nothing was measured, has the budget of the precision word.
class LinkPacer {
 public:
  /// `reach`: how many of its tokens each layer sends, so that long layers get their share. `sender` outlives it.
  LinkPacer(transfer::Sender* sender, const codec::Spectrum& spectrum, Clock::time_point begin, double target_ms,
            std::vector<uint32_t> reach);

  /// Errors  kInvalidArgument: a rule that drops tokens at every budget
  Status Check() const;

  /// The spectrum for a layer that has just been computed, whose tokens are all at fp16.
  Result<codec::Spectrum> SpectrumFor(uint32_t layer, const cache::LayerCache& cache, codec::PromptTail tail);
  /// The layer has been given to the sender: computing goes on.
  void LayerSent() { computing_since_ = Clock::now(); }

  /// Once the first token is there.
  PacingReport Report(double ttft_ms, double prefill_ms) const;

 private:
  Result<double> BudgetFor(uint32_t layer, const std::function<uint64_t(double)>& layer_bytes);
  /// Of `layer` and all after it, if they are as long as their reach says.
  uint64_t LowestBytesLeft(uint32_t layer, uint64_t lowest_bytes) const;
  double SecondsSinceBegin(Clock::time_point when) const { return MillisecondsBetween(begin_, when) / 1000; }

  transfer::Sender* sender_;
  const codec::Spectrum spectrum_;
  const Clock::time_point begin_;
  const double target_ms_;
  const std::vector<uint32_t> reach_;
  Clock::time_point computing_since_;
  double computing_seconds_ = 0;  ///< of the layers but the first
  std::vector<double> budgets_;
  std::vector<policy::ComputedLayer> at_lowest_;  ///< when each layer was computed, what it takes at the lowest budget
};

}  // namespace kvant::engine
