#include <algorithm>
#include <optional>
#include <string>

#include "engine/answer.h"
#include "kvant/engine/generate.h"
#include "kvant/engine/profile.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/engine/session.h"

namespace kvant::engine {
namespace {

// A sequence to go on with: what the session holds of the prompt's beginning, or nothing.
Result<cache::Sequence> TakeUp(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                               const codec::Precision& kv, const std::string& path, cache::MemoryAccount* account,
                               GenerateReport* report) {
  KVANT_RETURN_IF_ERROR(CheckSession(path, kv));
  Result<Session> session = LoadSession(path, engine, tokenizer, kv, account);
  if (!session.ok()) {
    return session.status().code() == StatusCode::kNotFound ? engine.NewSequence(kv, account) : session.status();
  }
  const auto& [sequence, tokens] = *session;
  const auto common = std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end()).first;
  // The last token's logits are needed: it at least is computed.
  const auto wanted = static_cast<uint32_t>(std::min<size_t>(common - tokens.begin(), prompt.size() - 1));
  if (wanted == 0) {  // what it would leave behind, the maps of its pairs, is of another prompt
    report->recomputed = "the prompt takes none of the session's " + std::to_string(tokens.size()) + " tokens";
    return engine.NewSequence(kv, account);
  }
  const uint32_t kept = sequence.ReusableTokens(wanted);
  if (kept == 0 || kept > wanted) {
    report->recomputed = "the prompt goes on after " + std::to_string(wanted) + " of the session's " +
                         std::to_string(tokens.size()) + " tokens; cannot take back " +
                         std::to_string(tokens.size() - wanted) +
                         " tokens that are encoded by what followed, or whose window has moved on";
    return engine.NewSequence(kv, account);
  }
  session->sequence.KeepFirst(kept);
  report->cached_tokens = kept;
  return std::move(session->sequence);
}

cache::PrefixKey KeyOf(const Engine& engine, const codec::Precision& kv) {
  const Profile* profile = engine.FindProfile(kv);
  return {engine.model().fingerprint(), profile == nullptr ? 0 : profile->Id(), codec::PrecisionWord(kv)};
}

Result<cache::Sequence> Begin(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                              const codec::Precision& kv, const GenerateOptions& options, const cache::PrefixKey& key,
                              cache::MemoryAccount* account, GenerateReport* report) {
  if (!options.session.empty()) {
    return TakeUp(engine, tokenizer, prompt, kv, options.session, account, report);
  }
  if (options.prefixes != nullptr) {
    if (std::optional<cache::Sequence> found = options.prefixes->Find(key, prompt)) {
      report->cached_tokens = found->num_tokens();
      return std::move(*found);
    }
  }
  return engine.NewSequence(kv, account);
}

// After an answer: the prompt and what was decoded are in the cache.
Status Keep(const Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt, const Answer& answer,
            const cache::Sequence& sequence, const GenerateOptions& options, const cache::PrefixKey& key) {
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), answer.decoded().begin(), answer.decoded().end());
  if (options.prefixes != nullptr) {
    options.prefixes->Keep(key, tokens, sequence);
  }
  return options.session.empty() ? OkStatus() : SaveSession(options.session, engine, tokenizer, sequence, tokens);
}

}  // namespace

Result<GenerateReport> GenerateLocal(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     const codec::Precision& kv, const GenerateOptions& options,
                                     const GenerateCallbacks& callbacks) {
  const Clock::time_point begin = Clock::now();
  const ModelParams& params = engine.model().params();
  KVANT_ASSIGN_OR_RETURN(const uint32_t limit, AnswerLimit(params, prompt.size(), options));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler, Sampler::Create(tokenizer, options.sampling));
  if (options.prefixes != nullptr && !options.session.empty()) {
    return Status(StatusCode::kInvalidArgument, "a session is kept in a file, or beginnings in memory: not both");
  }
  cache::MemoryAccount own(options.memory_limit_bytes);
  cache::MemoryAccount* account = options.prefixes != nullptr ? options.prefixes->account() : &own;
  const cache::PrefixKey key = options.prefixes != nullptr ? KeyOf(engine, kv) : cache::PrefixKey();
  GenerateReport report;
  KVANT_ASSIGN_OR_RETURN(cache::Sequence sequence,
                         Begin(engine, tokenizer, prompt, kv, options, key, account, &report));
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
  if (options.prefixes != nullptr) {
    options.prefixes->Keep(key, prompt, sequence);
  }
  sampler->AcceptPrompt(prompt);
  KVANT_ASSIGN_OR_RETURN(const int32_t first_token, sampler->Sample(logits));
  report.ttft_ms = MillisecondsBetween(begin, Clock::now());
  Answer answer(&engine, &tokenizer, sampler.get(), &options, &callbacks);
  KVANT_RETURN_IF_ERROR(answer.Run(sequence, first_token, limit, &report));
  KVANT_RETURN_IF_ERROR(Keep(engine, tokenizer, prompt, answer, sequence, options, key));
  return report;
}

}  // namespace kvant::engine
