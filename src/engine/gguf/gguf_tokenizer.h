#pragma once

#include <span>
#include <string_view>

#include "engine/gguf/gguf_header.h"
#include "kvant/base/status.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {

struct CheckedTokenizer {
  TokenizerParams params;
  uint32_t vocab_size = 0;
};

/// A way of splitting text before byte-level BPE that libllama knows by name. One it does not know it refuses; without
/// a name it would split by a rule that is probably wrong.
struct PreTokenizer {
  std::string_view name;
  bool add_bos;  ///< a BOS goes in front unless the file says no
};
std::span<const PreTokenizer> PreTokenizers();

/// All `tokenizer.*` keys: a model and a pre-tokenizer libllama knows, arrays of equal length, special ids in range,
/// well-formed merges, every byte expressible. What passes, libllama loads, and it tokenizes any text with it.
Result<CheckedTokenizer> ReadTokenizer(const GgufHeader& header);

}  // namespace kvant::engine
