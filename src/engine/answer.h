#pragma once

#include <chrono>

#include "kvant/engine/generate.h"

namespace kvant::engine {

using Clock = std::chrono::steady_clock;

inline double MillisecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// How many tokens may be generated after a prompt.
/// Errors  kInvalidArgument, kCapacityExceeded as the Generate functions have them
Result<uint32_t> AnswerLimit(const ModelParams& params, size_t prompt_tokens, const GenerateOptions& options);

class Refiner;

/// The decode half of a generation, once the first token is known: stream, decode, stop.
class Answer {
 public:
  /// `refiner` may be null.
  Answer(Engine* engine, const Tokenizer* tokenizer, Sampler* sampler, const GenerateOptions* options,
         const GenerateCallbacks* callbacks, Refiner* refiner = nullptr)
      : engine_(engine),
        tokenizer_(tokenizer),
        sampler_(sampler),
        options_(options),
        callbacks_(callbacks),
        refiner_(refiner) {}

  /// Shapes  first_token was sampled after the sequence's last token; it counts towards the limit
  Status Run(cache::Sequence& sequence, int32_t first_token, uint32_t limit, GenerateReport* report);
  /// Tokens of the answer whose keys and values are in the sequence.
  const std::vector<int32_t>& decoded() const { return decoded_; }

 private:
  /// False when the token ends the answer.
  bool Emit(int32_t token, GenerateReport* report);
  Result<int32_t> Next(cache::Sequence& sequence, int32_t token);
  Status Decode(cache::Sequence& sequence, int32_t token);
  void Show(std::string text, GenerateReport* report);

  Engine* engine_;
  const Tokenizer* tokenizer_;
  Sampler* sampler_;
  const GenerateOptions* options_;
  const GenerateCallbacks* callbacks_;
  Refiner* refiner_;
  Utf8Stream stream_;
  std::vector<float> logits_;
  std::vector<int32_t> decoded_;
};

/// How the prompt of a sequence just received was sent, in the layer with most tokens.
void DescribeReceived(const cache::Sequence& sequence, GenerateReport* report);

/// Bytes, bits and tiers of a finished sequence.
void DescribeCache(const cache::Sequence& sequence, GenerateReport* report);

}  // namespace kvant::engine
