#include <algorithm>
#include <string>

#include "engine/answer.h"
#include "kvant/engine/generate.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/engine/session.h"

namespace kvant::engine {
namespace {

// Whether tokens can be taken back: not where a window has let go of what the earlier tokens would see again.
Status TakeBack(cache::Sequence& sequence, uint32_t count) {
  for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
    if (sequence.layer(layer).num_unreachable() > 0) {
      return {StatusCode::kOutOfRange, "cannot take back " + std::to_string(count) +
                                           " tokens: their windows have left what they would see again"};
    }
  }
  return sequence.ShrinkExact(count);
}

// A sequence to go on with: what the session holds of the prompt's beginning, or nothing.
Result<cache::Sequence> Begin(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                              const codec::Precision& kv, const std::string& path, cache::MemoryAccount* account,
                              GenerateReport* report) {
  if (path.empty()) {
    return engine.NewSequence(kv, account);
  }
  KVANT_RETURN_IF_ERROR(CheckSessionPath(path));
  Result<Session> session = LoadSession(path, engine, tokenizer, kv, account);
  if (!session.ok()) {
    return session.status().code() == StatusCode::kNotFound ? Result<cache::Sequence>(engine.NewSequence(kv, account))
                                                            : session.status();
  }
  const auto& [sequence, tokens] = *session;
  const auto common = std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end()).first;
  // The last token's logits are needed: it at least is computed.
  const auto kept = static_cast<uint32_t>(std::min<size_t>(common - tokens.begin(), prompt.size() - 1));
  const auto back = static_cast<uint32_t>(tokens.size()) - kept;
  const Status taken = back > 0 ? TakeBack(session->sequence, back) : OkStatus();
  if (!taken.ok()) {
    report->recomputed = "the prompt goes on after " + std::to_string(kept) + " of the session's " +
                         std::to_string(tokens.size()) + " tokens; " + taken.message();
    return engine.NewSequence(kv, account);
  }
  report->cached_tokens = kept;
  return std::move(session->sequence);
}

// After an answer: the prompt and what was decoded are in the cache.
Status Keep(const Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt, const Answer& answer,
            const cache::Sequence& sequence, const std::string& path) {
  if (path.empty()) {
    return OkStatus();
  }
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), answer.decoded().begin(), answer.decoded().end());
  return SaveSession(path, engine, tokenizer, sequence, tokens);
}

}  // namespace

Result<GenerateReport> GenerateLocal(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     const codec::Precision& kv, const GenerateOptions& options,
                                     const GenerateCallbacks& callbacks) {
  const Clock::time_point begin = Clock::now();
  const ModelParams& params = engine.model().params();
  KVANT_ASSIGN_OR_RETURN(const uint32_t limit, AnswerLimit(params, prompt.size(), options));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler, Sampler::Create(tokenizer, options.sampling));
  cache::MemoryAccount account(options.memory_limit_bytes);
  GenerateReport report;
  KVANT_ASSIGN_OR_RETURN(cache::Sequence sequence,
                         Begin(engine, tokenizer, prompt, kv, options.session, &account, &report));
  EncodeInPlace encode(kv, codec::PromptTail::kByPosition, &engine.backend().pool());
  PrefillOptions prefill;
  prefill.cancelled = callbacks.cancelled;
  if (callbacks.prefill) {
    prefill.progress = [&](uint32_t layers_done) { callbacks.prefill(layers_done, params.num_layers); };
  }
  std::vector<float> logits;
  KVANT_RETURN_IF_ERROR(engine.Prefill(sequence, prompt.subspan(report.cached_tokens), encode, prefill, &logits));
  report.prompt_tokens = static_cast<uint32_t>(prompt.size());
  report.prefill_ms = MillisecondsBetween(begin, Clock::now());
  sampler->AcceptPrompt(prompt);
  KVANT_ASSIGN_OR_RETURN(const int32_t first_token, sampler->Sample(logits));
  report.ttft_ms = MillisecondsBetween(begin, Clock::now());
  Answer answer(&engine, &tokenizer, sampler.get(), &options, &callbacks);
  KVANT_RETURN_IF_ERROR(answer.Run(sequence, first_token, limit, &report));
  KVANT_RETURN_IF_ERROR(Keep(engine, tokenizer, prompt, answer, sequence, options.session));
  return report;
}

}  // namespace kvant::engine
