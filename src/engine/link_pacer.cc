#include "engine/link_pacer.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "kvant/policy/tier_map.h"
#include "kvant/wire/layer_frame.h"

namespace kvant::engine {
namespace {

constexpr double kReserve = 0.03;  // of the target: for the last logits, the finish, and a line that is not quite even

}  // namespace

LinkPacer::LinkPacer(transfer::Sender* sender, const codec::Spectrum& spectrum, Clock::time_point begin,
                     double target_ms, std::vector<uint32_t> reach)
    : sender_(sender),
      spectrum_(spectrum),
      begin_(begin),
      target_ms_(target_ms),
      reach_(std::move(reach)),
      computing_since_(Clock::now()) {}

Status LinkPacer::Check() const {
  if (policy::LowestBudget(spectrum_.rule)) {
    return OkStatus();
  }
  return {StatusCode::kInvalidArgument, "a time to the first token is kept by sending tokens at fewer bits; " +
                                            std::string(codec::TierRuleName(spectrum_.rule)) +
                                            " would drop more of them"};
}

Result<codec::Spectrum> LinkPacer::SpectrumFor(uint32_t layer, const cache::LayerCache& cache, codec::PromptTail tail) {
  codec::LayerBlockLayout layout = cache.PlanBlock(tail);
  const auto layer_bytes = [&](double budget) {
    layout.tiers = policy::CountsAt(spectrum_, budget, layout.split.num_encoded).value();
    return uint64_t{wire::kBlockOffset + layout.total_bytes()};
  };
  codec::Spectrum chosen = spectrum_;
  KVANT_ASSIGN_OR_RETURN(chosen.budget, BudgetFor(layer, layer_bytes));
  chosen.budget = std::min(chosen.budget, spectrum_.refine.value_or(1));  // what is sent later cannot be less
  budgets_.push_back(chosen.budget);
  return chosen;
}

Result<double> LinkPacer::BudgetFor(uint32_t layer, const std::function<uint64_t(double)>& layer_bytes) {
  const double lowest = *policy::LowestBudget(spectrum_.rule);
  const uint64_t lowest_bytes = layer_bytes(lowest);
  const Clock::time_point computed = Clock::now();
  at_lowest_.push_back({SecondsSinceBegin(computed), lowest_bytes});
  KVANT_ASSIGN_OR_RETURN(const transfer::LineState line, sender_->MeasureLine());
  if (line.bytes_per_second == 0) {
    return std::max(lowest, spectrum_.budget);
  }
  computing_seconds_ += MillisecondsBetween(computing_since_, computed) / 1000;
  const double target = target_ms_ / 1000;
  const uint64_t bytes =
      policy::BytesForLayer({.seconds_left = target * (1 - kReserve) - SecondsSinceBegin(Clock::now()),
                             .bytes_per_second = line.bytes_per_second,
                             .queued_bytes = line.queued_bytes,
                             .layers_left = static_cast<uint32_t>(reach_.size()) - layer,
                             .seconds_a_layer = computing_seconds_ / static_cast<double>(budgets_.size()),
                             .lowest_bytes = lowest_bytes,
                             .lowest_bytes_left = LowestBytesLeft(layer, lowest_bytes)});
  return policy::LargestBudget(lowest, bytes, layer_bytes);
}

uint64_t LinkPacer::LowestBytesLeft(uint32_t layer, uint64_t lowest_bytes) const {
  const auto tokens = std::accumulate(reach_.begin() + layer, reach_.end(), uint64_t{0});
  return static_cast<uint64_t>(static_cast<double>(lowest_bytes) * static_cast<double>(tokens) / reach_[layer]);
}

PacingReport LinkPacer::Report(double ttft_ms, double prefill_ms) const {
  PacingReport report{.target_ms = target_ms_};
  const transfer::LineSpeed& line = sender_->report().line;
  if (budgets_.empty() || line.mean_gbps() == 0) {
    return report;
  }
  report.budget = std::accumulate(budgets_.begin(), budgets_.end(), 0.0) / static_cast<double>(budgets_.size());
  const auto [low, high] = std::minmax_element(budgets_.begin(), budgets_.end());
  report.lowest_budget = *low;
  report.highest_budget = *high;
  const double arrived_ms = MillisecondsBetween(begin_, line.free_since());
  const double earliest_ms = 1000 * policy::ArrivalOf(at_lowest_, line.mean_gbps() * 1e9 / 8);
  report.lowest_ttft_ms =
      std::min(ttft_ms, ttft_ms - std::max(arrived_ms, prefill_ms) + std::max(earliest_ms, prefill_ms));
  return report;
}

}  // namespace kvant::engine
