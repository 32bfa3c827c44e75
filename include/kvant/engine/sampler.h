#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/engine/tokenizer.h"

struct llama_sampler;

namespace kvant::engine {

struct SamplingParams {
  float temperature = 0.0F;     ///< 0: always the likeliest token
  int32_t top_k = 40;           ///< 0: off
  float top_p = 0.95F;          ///< 1: off
  float min_p = 0.05F;          ///< 0: off
  float repeat_penalty = 1.0F;  ///< 1: off
  int32_t repeat_last_n = 64;   ///< tokens looked back on
  uint32_t seed = 0;
  std::string grammar;  ///< GBNF text; empty: none
};

/// Errors  kInvalidArgument names the field and its allowed range
Status CheckSampling(const SamplingParams& params);

/// Chooses tokens by libllama's samplers.
///
/// Threads  one caller
class Sampler {
 public:
  /// Errors  CheckSampling's; kInvalidArgument: the grammar does not parse
  static Result<std::unique_ptr<Sampler>> Create(const Tokenizer& tokenizer, const SamplingParams& params);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Choose a token and take it into the history.
  /// Shapes  logits [vocab_size]
  /// Errors  kNumeric: a logit is NaN or +infinity; kInvalidArgument: the grammar allows no token
  Result<int32_t> Sample(std::span<const float> logits);

  /// Tokens of the prompt: they count for the repetition penalty, not for the grammar.
  void AcceptPrompt(std::span<const int32_t> tokens);
  /// A token that another sampler of the same parameters chose (the prefill worker's): history, grammar and random
  /// numbers stand afterwards as if it was chosen here.
  void AcceptGenerated(int32_t token);

 private:
  Sampler() = default;

  int32_t Draw(std::span<const float> logits, bool with_grammar);

  struct Candidates;
  SamplingParams params_;
  llama_sampler* chain_ = nullptr;
  llama_sampler* penalties_ = nullptr;  ///< in the chain, or null
  llama_sampler* grammar_ = nullptr;
  uint64_t num_draws_ = 0;
  std::unique_ptr<Candidates> candidates_;
};

}  // namespace kvant::engine
