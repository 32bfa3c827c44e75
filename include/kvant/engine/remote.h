#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kvant/engine/generate.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/transport.h"

namespace kvant::engine {

/// How a prompt goes to a decode worker.
struct RemoteOptions {
  codec::Precision wire;
  transfer::Timeouts timeouts;
  std::optional<double> ttft_target_ms{};  ///< as DisaggregatedOptions has it
};

/// Prompt here, decode at the other end of `endpoint`, where ServeSession runs. The layers cross while later ones
/// compute; the answer comes back as text. What the report says of time to the first token ends when its text is here.
///
/// Requires a connected endpoint, authenticated, used by nobody else. It is closed afterwards
/// Errors   as GenerateDisaggregated; what the worker refuses with or fails of; kTimeout, kTransportClosed
Result<GenerateReport> GenerateRemote(Engine& prefill, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                      transport::Endpoint& endpoint, const RemoteOptions& remote,
                                      const GenerateOptions& options, const GenerateCallbacks& callbacks);

struct ServeOptions {
  uint32_t max_context_tokens = 0;  ///< of prompt and answer together
  transfer::Timeouts timeouts;
  cache::MemoryAccount* account = nullptr;  ///< of the caches that are built; outlives the session
  /// Called after each adopted layer. May be empty.
  std::function<void(uint32_t layers_done, uint32_t num_layers)> progress;
  std::function<bool()> cancelled;  ///< asked from another thread too; true ends the session with kCancelled
};

/// The decode side of one session: take a prompt, decode, send the text back. The report's text stays empty, and so do
/// the times that only the other side knows.
///
/// Requires as GenerateRemote
/// Ensures  the cache is freed, whatever happened; on error the peer was told why, if it could be
/// Errors   what Receiver and AnswerGiver say; kInvalidArgument: a request that this model cannot go on with; what
/// Engine
///          and Sampler return
Result<GenerateReport> ServeSession(Engine& decode, const Tokenizer& tokenizer, transport::Endpoint& endpoint,
                                    const ServeOptions& options);

}  // namespace kvant::engine
