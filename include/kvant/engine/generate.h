#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvant/base/status.h"
#include "kvant/cache/prefix_cache.h"
#include "kvant/codec/precision.h"
#include "kvant/engine/engine.h"
#include "kvant/engine/sampler.h"
#include "kvant/engine/tokenizer.h"
#include "kvant/transport/tap.h"

namespace kvant::engine {

enum class FinishReason : uint8_t { kStop, kLength };
std::string_view FinishReasonName(FinishReason reason);  ///< "stop", "length"

struct GenerateOptions {
  uint32_t max_tokens = 128;
  uint32_t context = 0;  ///< tokens of prompt and answer together; 0: what the model is meant for
  bool ignore_eos = false;
  SamplingParams sampling;
  uint64_t memory_limit_bytes = UINT64_MAX;  ///< of the KV cache
  /// GenerateLocal alone: what a file keeps of an earlier call is taken from there where the prompt begins with it, and
  /// the cache is kept there in the end (session.h). Empty: neither
  std::string session;
  /// Beginnings that local prompts share; the sequence then draws on its account, and memory_limit_bytes is not used.
  /// Not together with `session`. May be null
  cache::PrefixCache* prefixes = nullptr;
};

/// Called as things happen, on the thread that called Generate… unless said otherwise. All may be empty.
struct GenerateCallbacks {
  std::function<void(uint32_t layers_done, uint32_t num_layers)> prefill;
  std::function<void(uint32_t layers_done, uint32_t num_layers)> transfer;  ///< on the decode side's thread
  std::function<void(std::string_view text)> text;                          ///< whole UTF-8 characters, in order
  std::function<bool()> cancelled;                                          ///< asked between steps, from any thread
};

/// Tokens by tier, a mean over layers and KV heads.
struct TierTokens {
  double fp16 = 0;
  double int8 = 0;
  double int4 = 0;
  double dropped = 0;
};

/// How a time to the first token was kept (DisaggregatedOptions::ttft_target_ms). The budgets are nothing where no
/// token was encoded: the prompt was too short.
struct PacingReport {
  double target_ms = 0;
  std::optional<double> budget{};  ///< a mean over the layers
  std::optional<double> lowest_budget{};
  std::optional<double> highest_budget{};
  /// The time to the first token that the lowest budget in every layer would have had, by the line as it was measured.
  std::optional<double> lowest_ttft_ms{};
};

/// What a generation took. The *_fp16 twins of bytes count the same tokens at fp16.
struct GenerateReport {
  std::string text;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  ///< of the prompt that were in the session, or a beginning that was kept
  std::string recomputed;      ///< why none of a session was used, where there was one
  uint32_t completion_tokens = 0;
  FinishReason finish_reason = FinishReason::kLength;
  double ttft_ms = 0;             ///< from the call to the first token on the decode side
  std::optional<double> tpot_ms;  ///< mean over the tokens after the first; nothing where there is only one
  double prefill_ms = 0;
  double transfer_ms = 0;  ///< from the end of prefill to the last byte; 0 locally
  uint64_t kv_bytes = 0;   ///< in use at the end: the stored tokens at their precision, maps and scales included
  uint64_t kv_bytes_fp16 = 0;
  uint64_t kv_bytes_allocated = 0;  ///< whole pages, with the slots that wait for tokens
  uint64_t wire_bytes = 0;          ///< as the transport counted them, both directions
  uint64_t wire_bytes_fp16 = 0;
  uint64_t upgrade_bytes = 0;        ///< planes that raised tokens while the answer was decoded, beyond wire_bytes
  uint32_t wire_tokens_encoded = 0;  ///< prompt tokens sent at the precision of the wire
  uint32_t wire_tokens_exact = 0;    ///< prompt tokens sent at fp16: sinks, and all of a prompt too short for a map
  double line_gbps = 0;              ///< 10^9 bits a second that the line carried while it had layers to carry
  std::optional<PacingReport> pacing{};
  codec::BitsPerElement bits;  ///< of the cache at the end
  TierTokens tiers;
};

/// Prompt, encode in place, decode: one engine.
///
/// Errors  kInvalidArgument: no prompt tokens; kCapacityExceeded: the prompt does not leave room for one token in the
///         context, with both numbers; what Engine and Sampler return
Result<GenerateReport> GenerateLocal(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     const codec::Precision& kv, const GenerateOptions& options,
                                     const GenerateCallbacks& callbacks);

/// How two engines of one process are joined.
struct DisaggregatedOptions {
  codec::Precision wire;
  double link_gbps = 0;  ///< 0: as fast as memory
  /// Choose the budget of each layer so that the first token is there by then. Requires a spectrum that drops no tokens
  std::optional<double> ttft_target_ms{};
  transport::Tap sent{};  ///< shown what the prefill side sends; may be empty
};

/// Prompt in one engine, decode in another; between them only a transport. The layers cross while later ones compute,
/// and the decode side keeps them as received.
///
/// Requires prefill and decode to be engines of their own (model, backend and memory each)
Result<GenerateReport> GenerateDisaggregated(Engine& prefill, Engine& decode, const Tokenizer& tokenizer,
                                             std::span<const int32_t> prompt, const DisaggregatedOptions& link,
                                             const GenerateOptions& options, const GenerateCallbacks& callbacks);

}  // namespace kvant::engine
