#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/precision.h"
#include "kvant/engine/engine.h"
#include "kvant/eval/candidate.h"

namespace kvant::eval {

/// How a window is scored (research note: the two protocols give numbers that may not be compared with each other).
enum class Protocol : uint8_t {
  kAllQuantized,  ///< one causal pass; every query, the diagonal included, meets quantized keys and values
  kExactPrompt,   ///< the prompt is computed exactly, then quantized; the following tokens are scored over it
};

struct PerplexityOptions {
  Protocol protocol = Protocol::kExactPrompt;
  uint32_t num_windows = 1;
  uint32_t window_tokens = 2048;
  uint32_t prompt_tokens = 1536;  ///< of the window, with kExactPrompt
  uint32_t kl_stride = 8;         ///< with kAllQuantized the divergence is taken at every kl_stride-th token
  uint32_t attention_stride = 8;  ///< with kExactPrompt the attention of every so-manyth scored token is compared
  std::function<void(uint32_t passes_done, uint32_t num_passes)> progress;
  std::function<bool()> cancelled;  ///< asked between steps; true ends with kCancelled
};

/// A mean over scored tokens and its standard error.
struct Estimate {
  double mean = 0;
  double standard_error = 0;
};

/// One candidate against fp16 on the same tokens.
struct PerplexityResult {
  Candidate candidate;
  double perplexity = 0;             ///< exp of the mean loss over all windows
  Estimate log_perplexity_increase;  ///< paired by token; its exp - 1 is the relative change of perplexity
  Estimate kl;                       ///< KL(fp16 ‖ precision) of next-token distributions
  /// KL(fp16 ‖ precision) of attention rows, a mean over layers, query heads and sampled scored tokens: the queries of
  /// the fp16 run over its own keys, the prompt's as the precision stores them. Values do not enter. The standard
  /// error is over tokens. Nothing with kAllQuantized, and where tokens are dropped (it would be infinite).
  std::optional<Estimate> attention_kl;
  codec::BitsPerElement bits;  ///< of the cache when the window was scored
};

/// Score candidates on consecutive windows of a tokenized text. The first result is fp16 itself.
///
/// Requires tokens for all windows
/// Errors   kInvalidArgument names a size that does not fit, or a candidate that the protocol cannot score, before
///          anything is computed; what the engine returns
Result<std::vector<PerplexityResult>> Perplexity(engine::Engine& engine, std::span<const int32_t> tokens,
                                                 std::span<const Candidate> candidates,
                                                 const PerplexityOptions& options);

}  // namespace kvant::eval
