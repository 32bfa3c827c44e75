#pragma once

#include <span>
#include <vector>

#include "kvant/codec/tiers.h"

namespace kvant::policy {

/// Tokens raised until a KV head's tiers have the counts of `target`, or nothing is left to raise: int8 tokens before
/// int4 ones, in either those of the largest mass, ties to the earlier token. Which tiers tokens leave and reach
/// depends on the counts alone, so all heads of a layer move alike.
///
/// Requires ids and mass of one length
/// Ensures  no token is lowered, none dropped is raised
std::vector<codec::Tier> RaiseTo(const codec::TierCounts& target, std::span<const codec::Tier> ids,
                                 std::span<const float> mass);

}  // namespace kvant::policy
