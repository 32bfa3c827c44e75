#pragma once

#include <memory>
#include <optional>
#include <span>

#include "engine/answer.h"
#include "engine/cold_store.h"
#include "engine/link_pacer.h"
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
  std::optional<double> ttft_target_ms{};
  Clock::time_point begin = Clock::now();
  Clock::time_point prefilled{};
  std::unique_ptr<LinkPacer> pacer{};
  Status status;
  /// Of the prompt's pages; outlives the store.
  std::unique_ptr<cache::MemoryAccount> account;
  /// Where the precision of the wire asks for refinement; what it holds is freed with the job.
  std::unique_ptr<ColdStore> cold_store;
};

/// The prefill side of a session: handshake, prompt, transfer; the layers leave while later ones are computed.
/// Ensures  job.status says how it went; an error has ended the session
void RunPrefill(PrefillJob& job, transfer::Sender& sender);

/// What the line carried, and how the time to the first token was kept. Requires report->ttft_ms and prefill_ms
void DescribeLine(const PrefillJob& job, const transfer::Sender& sender, GenerateReport* report);

}  // namespace kvant::engine
