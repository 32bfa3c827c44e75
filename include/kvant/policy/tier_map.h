#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/spectrum.h"
#include "kvant/codec/tiers.h"

namespace kvant::policy {

/// The tokens beyond the sinks of one layer's prompt.
struct TierRequest {
  uint32_t num_kv_heads = 0;
  uint32_t first_position = 0;  ///< of the first of them
  uint32_t num_tokens = 0;
  /// What they are ranked by: one row a KV head, or one row for all of them. Unused by rules that do not rank, and by
  /// importance=position. Shapes  [num_kv_heads or 1][num_tokens]
  std::span<const std::vector<float>> importance;
};

/// Whether a spectrum's tokens are ranked by something that has to be measured.
bool ReadsAttention(const codec::Spectrum& spectrum);
bool ReadsNorms(const codec::Spectrum& spectrum);

/// A spectrum's choice for one layer: counts from the budget, tokens from the importance with its decay, ties to the
/// earlier token. The same request gives the same tiers.
///
/// Errors  kInvalidArgument: a budget that the rule cannot keep
Result<codec::TierMap> MakeTierMap(const codec::Spectrum& spectrum, const TierRequest& request);

/// How many of a layer's tokens a spectrum's rule would put in each tier at another budget.
/// Requires no selection (pdtrim, sws). Errors  kInvalidArgument: a budget that the rule cannot keep
Result<codec::TierCounts> CountsAt(const codec::Spectrum& spectrum, double budget, uint32_t num_tokens);

}  // namespace kvant::policy
