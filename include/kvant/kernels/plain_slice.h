#pragma once

#include <cstdint>
#include <vector>

#include "kvant/kernels/attend.h"

namespace kvant::kernels {

/// Tokens of a slice in fp32 as attention meets them: keys restored, values turned back. One row after the other, by
/// the codecs' references: for what is compared and measured, not for what has to be fast.
/// Shapes  keys, values [num_tokens, head_dim]; positions [num_tokens]
struct PlainSlice {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<int32_t> positions;
  uint32_t num_tokens = 0;
};

PlainSlice LoadPlainSlice(const AttendSlice& slice);

}  // namespace kvant::kernels
