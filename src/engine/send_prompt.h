#pragma once

#include <span>

#include <memory>

#include "engine/answer.h"
#include "engine/cold_store.h"
#include "kvant/transfer/sender.h"

namespace kvant::engine {

/// What the prefill side is told, and what it leaves behind.
struct PrefillJob {
  Engine* engine;
  const Tokenizer* tokenizer;
  std::span<const int32_t> prompt;
  codec::Precision wire;
  uint32_t context_tokens;
  const GenerateOptions* options;
  const GenerateCallbacks* callbacks;
  Clock::time_point prefilled{};
  Status status;
  /// Of the prompt's pages; outlives the store.
  std::unique_ptr<cache::MemoryAccount> account;
  /// Where the precision of the wire asks for refinement; what it holds is freed with the job.
  std::unique_ptr<ColdStore> cold_store;
};

/// The prefill side of a session: handshake, prompt, transfer; the layers leave while later ones are computed.
/// Ensures  job.status says how it went; an error has ended the session
void RunPrefill(PrefillJob& job, transfer::Sender& sender);

}  // namespace kvant::engine
