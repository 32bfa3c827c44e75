#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "support/engine_fixture.h"

namespace kvant::test {

/// Logits [tokens - first_row, vocab_size] of a prompt through our engine over an exact cache.
inline std::vector<float> OurLogits(LoadedModel& loaded, std::span<const int32_t> tokens, uint32_t chunk_tokens,
                                    size_t first_row = 0,
                                    engine::PromptAttention attention = engine::PromptAttention::kExact) {
  cache::Sequence sequence = loaded.engine->NewSequence(*codec::ParsePrecision("fp16"), &loaded.account).value();
  engine::EncodeInPlace consumer(sequence.precision(), codec::PromptTail::kByPosition, nullptr);
  std::vector<float> all;
  std::vector<float> last;
  engine::PrefillOptions options;
  options.chunk_tokens = chunk_tokens;
  options.attention = attention;
  options.all_logits = [&](uint32_t first, uint32_t rows, std::span<const float> logits) {
    const size_t skipped = std::min<size_t>(rows, first_row - std::min<size_t>(first_row, first));
    all.insert(all.end(), logits.begin() + static_cast<ptrdiff_t>(skipped * logits.size() / rows), logits.end());
  };
  const Status status = loaded.engine->Prefill(sequence, tokens, consumer, options, &last);
  EXPECT_TRUE(status.ok()) << status.message();
  return all;
}

}  // namespace kvant::test
