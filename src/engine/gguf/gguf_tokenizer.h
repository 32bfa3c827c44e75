#pragma once

#include "engine/gguf/gguf_header.h"
#include "kvant/base/status.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {

struct CheckedTokenizer {
  TokenizerParams params;
  uint32_t vocab_size = 0;
};

/// All `tokenizer.*` keys: a model and a pre-tokenizer libllama knows, arrays of equal length, special ids in range,
/// well-formed merges, every byte expressible. What passes, libllama loads, and it tokenizes any text with it.
Result<CheckedTokenizer> ReadTokenizer(const GgufHeader& header);

}  // namespace kvant::engine
