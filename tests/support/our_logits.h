#pragma once

#include <span>
#include <vector>

#include "support/engine_fixture.h"

namespace kvant::test {

/// Logits [tokens, vocab_size] of a prompt through our engine over an exact cache.
inline std::vector<float> OurLogits(LoadedModel& loaded, std::span<const int32_t> tokens, uint32_t chunk_tokens) {
  cache::Sequence sequence = loaded.engine->NewSequence(*codec::ParsePrecision("fp16"), &loaded.account);
  engine::EncodeInPlace consumer(sequence.precision(), codec::PromptTail::kByPosition, nullptr);
  std::vector<float> all;
  std::vector<float> last;
  engine::PrefillOptions options;
  options.chunk_tokens = chunk_tokens;
  options.all_logits = [&](uint32_t, uint32_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const Status status = loaded.engine->Prefill(sequence, tokens, consumer, options, &last);
  EXPECT_TRUE(status.ok()) << status.message();
  return all;
}

}  // namespace kvant::test
