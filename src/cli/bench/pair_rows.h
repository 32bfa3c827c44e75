#pragma once

#include <vector>

#include "kvant/base/half.h"
#include "kvant/codec/pair_precision.h"

namespace kvant::cli {

/// The random keys and values that pages are packed from: channels of different spread, as models have them.
struct PairRows {
  std::vector<Half> keys;  ///< [num_tokens, head_dim]
  std::vector<Half> values;
};
PairRows RandomPairRows(uint32_t head_dim, uint32_t num_tokens, uint32_t seed);

/// The map that `precision` makes of random keys and queries like those.
/// Errors  kInvalidArgument, kModelUnsupported: a precision that the head cannot have
Result<codec::WidthMap> RandomWidthMap(const codec::PairPrecision& precision, uint32_t head_dim, uint32_t seed);

}  // namespace kvant::cli
