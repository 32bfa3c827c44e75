#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/answer.h"
#include "kvant/base/hash.h"
#include "kvant/engine/generate.h"
#include "kvant/engine/prompt_encoder.h"
#include "kvant/transfer/receiver.h"
#include "kvant/transfer/sender.h"
#include "kvant/transport/loopback.h"

namespace kvant::engine {
namespace {

uint64_t RopeDigest(const Engine& engine) {
  const ModelParams& params = engine.model().params();
  const RopeParams& rope = params.rope;
  const bool plain = !rope.has_freq_factors && !rope.has_long_factors && rope.dims == params.head_dim;
  if (rope.scaling == RopeScaling::kNone && plain) {
    return 0;
  }
  Hasher64 hasher;
  const auto add = [&](const auto& value) { hasher.Update(std::as_bytes(std::span(&value, 1))); };
  add(rope.dims);
  add(rope.scaling);
  add(rope.factor);
  add(rope.original_context);
  add(rope.attn_factor);
  add(rope.has_long_factors && engine.context_tokens() > rope.original_context);
  return hasher.Digest();  // the factors themselves are weights, and so in the model's fingerprint
}

wire::ModelIdentity IdentityOf(const Engine& engine, const Tokenizer& tokenizer) {
  const Model& model = engine.model();
  const RopeParams& rope = model.params().rope;
  return {.model_fingerprint = model.fingerprint(),
          .tokenizer_fingerprint = tokenizer.fingerprint(),
          .shape = model.cache_shape(),
          .rope_layout = rope.layout == RopeLayout::kHalves ? wire::RopeLayout::kHalves : wire::RopeLayout::kAdjacent,
          .rope_base = rope.base,
          .rope_digest = RopeDigest(engine)};
}

// Sends a layer when the prompt has passed it, and frees it.
class SendAndClear : public PromptEncoder {
 public:
  SendAndClear(transfer::Sender* sender, const codec::Precision& precision, ThreadPool* pool)
      : PromptEncoder(precision, codec::PromptTail::kEncodeAll, pool), sender_(sender) {}

 protected:
  Status Take(uint32_t layer, cache::LayerCache& cache, const codec::TierMap* tiers) override {
    KVANT_RETURN_IF_ERROR(sender_->SendLayer(layer, cache, pool_, tiers));
    cache.Clear();
    return OkStatus();
  }

 private:
  transfer::Sender* sender_;
};

// What the prefill side is told, and what it leaves behind.
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
};

Status SendPrompt(PrefillJob& job, transfer::Sender& sender) {
  const ModelParams& params = job.engine->model().params();
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler,
                         Sampler::Create(*job.tokenizer, job.options->sampling));
  const auto num_tokens = static_cast<uint32_t>(job.prompt.size());
  KVANT_RETURN_IF_ERROR(sender.Handshake({.model = IdentityOf(*job.engine, *job.tokenizer),
                                          .precision = job.wire,
                                          .num_prompt_tokens = num_tokens,
                                          .num_context_tokens = job.context_tokens}));
  cache::MemoryAccount account(job.options->memory_limit_bytes);
  cache::Sequence sequence = job.engine->NewSequence(job.wire, &account);
  SendAndClear consumer(&sender, job.wire, &job.engine->backend().pool());
  PrefillOptions prefill;
  prefill.cancelled = job.callbacks->cancelled;
  if (job.callbacks->prefill) {
    prefill.progress = [&](uint32_t layers_done) { job.callbacks->prefill(layers_done, params.num_layers); };
  }
  std::vector<float> logits;
  KVANT_RETURN_IF_ERROR(job.engine->Prefill(sequence, job.prompt, consumer, prefill, &logits));
  sampler->AcceptPrompt(job.prompt);
  KVANT_ASSIGN_OR_RETURN(const int32_t first_token, sampler->Sample(logits));
  job.prefilled = Clock::now();
  return sender.Finish({.prompt_tokens = {job.prompt.begin(), job.prompt.end()},
                        .first_token = first_token,
                        .first_position = num_tokens,
                        .sampler = {job.options->sampling.seed, 1}});
}

// The prefill worker, on its own thread.
void RunPrefill(PrefillJob& job, transfer::Sender& sender) {
  job.status = SendPrompt(job, sender);
  if (!job.status.ok()) {
    sender.Abort(job.status);
  }
}

// Asks on a thread of its own whether the caller wants to stop: the sides of a session wait for the line meanwhile.
class CancelWatch {
 public:
  CancelWatch(const std::function<bool()>& cancelled, std::function<void()> cancel) {
    if (cancelled) {
      thread_ = std::jthread([cancelled, cancel = std::move(cancel)](const std::stop_token& stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any wake;  // by nothing but the stop
        while (!stop.stop_requested()) {
          if (cancelled()) {
            return cancel();
          }
          wake.wait_for(lock, stop, kInterval, [] { return false; });
        }
      });
    }
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{20};
  std::jthread thread_;  // its end is asked for and waited for when the watch is dropped
};

// What was sent, and how: every layer has the tokens of the first one.
void DescribeWire(const transport::Counters& counted, const transfer::Receiver& receiver,
                  const cache::Sequence& sequence, GenerateReport* report) {
  report->wire_bytes = counted.received_bytes + counted.sent_bytes;
  report->wire_bytes_fp16 = receiver.report().kv_bytes_fp16;
  const codec::TokenSplit split = sequence.layer(0).split();
  const bool exact = sequence.precision().is_exact();
  report->wire_tokens_encoded = exact ? 0 : split.num_encoded;
  report->wire_tokens_exact = split.total() - report->wire_tokens_encoded;
}

}  // namespace

Result<GenerateReport> GenerateDisaggregated(Engine& prefill, Engine& decode, const Tokenizer& tokenizer,
                                             std::span<const int32_t> prompt, const DisaggregatedOptions& link,
                                             const GenerateOptions& options, const GenerateCallbacks& callbacks) {
  const Clock::time_point begin = Clock::now();
  const ModelParams& params = decode.model().params();
  KVANT_ASSIGN_OR_RETURN(const uint32_t limit, AnswerLimit(params, prompt.size(), options));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler, Sampler::Create(tokenizer, options.sampling));
  KVANT_ASSIGN_OR_RETURN(const transport::LoopbackPair pair,
                         transport::MakeLoopback({.gigabits_per_second = link.link_gbps}));
  const auto context_tokens = static_cast<uint32_t>(prompt.size()) + limit;
  PrefillJob job{&prefill, &tokenizer, prompt, link.wire, context_tokens, &options, &callbacks};
  transfer::Sender sender(pair.first.get(), {});
  cache::MemoryAccount account(options.memory_limit_bytes);
  transfer::Receiver receiver(pair.second.get(), {.model = IdentityOf(decode, tokenizer),
                                                  .max_context_tokens = context_tokens,
                                                  .isa = decode.backend().isa(),
                                                  .account = &account,
                                                  .progress = callbacks.transfer});
  std::optional<CancelWatch> watch(std::in_place, callbacks.cancelled, [&] {
    sender.Cancel();
    receiver.Cancel();
  });
  std::thread worker([&] { RunPrefill(job, sender); });
  Result<transfer::Received> received = receiver.Run();
  worker.join();
  watch.reset();
  if (job.status.code() == StatusCode::kCancelled || received.status().code() == StatusCode::kCancelled) {
    return Status(StatusCode::kCancelled, "generation cancelled");
  }
  KVANT_RETURN_IF_ERROR(job.status.WithContext("prefill side"));
  KVANT_RETURN_IF_ERROR(received.status().WithContext("decode side"));

  GenerateReport report;
  report.prompt_tokens = static_cast<uint32_t>(prompt.size());
  report.prefill_ms = MillisecondsBetween(begin, job.prefilled);
  report.transfer_ms = MillisecondsBetween(job.prefilled, receiver.report().last_message);
  DescribeWire(pair.second->counters(), receiver, received->sequence, &report);
  sampler->AcceptPrompt(received->finish.prompt_tokens);
  sampler->AcceptGenerated(received->finish.first_token);
  report.ttft_ms = MillisecondsBetween(begin, Clock::now());
  Answer answer(&decode, &tokenizer, sampler.get(), &options, &callbacks);
  KVANT_RETURN_IF_ERROR(answer.Run(received->sequence, received->finish.first_token, limit, &report));
  return report;
}

}  // namespace kvant::engine
