#include "engine/answer.h"
#include "kvant/engine/generate.h"
#include "kvant/engine/prompt_encoder.h"

namespace kvant::engine {

Result<GenerateReport> GenerateLocal(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     const codec::Precision& kv, const GenerateOptions& options,
                                     const GenerateCallbacks& callbacks) {
  const Clock::time_point begin = Clock::now();
  const ModelParams& params = engine.model().params();
  KVANT_ASSIGN_OR_RETURN(const uint32_t limit, AnswerLimit(params, prompt.size(), options));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler, Sampler::Create(tokenizer, options.sampling));
  cache::MemoryAccount account(options.memory_limit_bytes);
  cache::Sequence sequence = engine.NewSequence(kv, &account);
  EncodeInPlace encode(kv, codec::PromptTail::kByPosition, &engine.backend().pool());
  PrefillOptions prefill;
  prefill.cancelled = callbacks.cancelled;
  if (callbacks.prefill) {
    prefill.progress = [&](uint32_t layers_done) { callbacks.prefill(layers_done, params.num_layers); };
  }
  std::vector<float> logits;
  KVANT_RETURN_IF_ERROR(engine.Prefill(sequence, prompt, encode, prefill, &logits));
  GenerateReport report;
  report.prompt_tokens = static_cast<uint32_t>(prompt.size());
  report.prefill_ms = MillisecondsBetween(begin, Clock::now());
  sampler->AcceptPrompt(prompt);
  KVANT_ASSIGN_OR_RETURN(const int32_t first_token, sampler->Sample(logits));
  report.ttft_ms = MillisecondsBetween(begin, Clock::now());
  Answer answer(&engine, &tokenizer, sampler.get(), &options, &callbacks);
  KVANT_RETURN_IF_ERROR(answer.Run(sequence, first_token, limit, &report));
  return report;
}

}  // namespace kvant::engine
