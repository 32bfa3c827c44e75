#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvant/base/buffer.h"

namespace kvant::test {

/// A frame, and what a decoder of docs/format/wire.md must find in it.
struct WireSample {
  std::string name;
  Buffer frame;
  std::string fields;         ///< lines "field value", in the order of the document
  std::vector<float> values;  ///< of layer frames: keys, then values, [num_kv_heads, num_tokens, head_dim] each
};

/// Frames of the answer that goes back (wire/answer.h).
std::vector<WireSample> AnswerSamples();

/// The samples kept in tests/golden/v1: every type, every codec, small; all layers of the same rows.
std::vector<WireSample> GoldenSamples();

/// Layer frames of every codec, plain and equalized, for head dimensions 36 to 256 and several splits.
std::vector<WireSample> ManyLayerSamples();

}  // namespace kvant::test
