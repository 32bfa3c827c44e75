#include "engine/send_prompt.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/identity.h"
#include "kvant/engine/prompt_encoder.h"

namespace kvant::engine {
namespace {

// Sends a layer when the prompt has passed it, and frees it, unless a store keeps it.
class SendLayers : public PromptEncoder {
 public:
  SendLayers(transfer::Sender* sender, const codec::Precision& precision, ThreadPool* pool, ColdStore* store,
             LinkPacer* pacer)
      : PromptEncoder(precision, codec::PromptTail::kEncodeAll, pool), sender_(sender), store_(store), pacer_(pacer) {}

 protected:
  Status Take(uint32_t layer, cache::LayerCache& cache, const codec::TierMap* tiers) override {
    KVANT_RETURN_IF_ERROR(sender_->SendLayer(layer, cache, pool_, tiers));
    if (store_ == nullptr || tiers == nullptr) {
      cache.Clear();
    } else {
      store_->Keep(layer, *tiers);
    }
    if (pacer_ != nullptr) {
      pacer_->LayerSent();
    }
    return OkStatus();
  }
  Result<codec::Spectrum> SpectrumOf(uint32_t layer, const cache::LayerCache& cache) override {
    return pacer_ == nullptr ? PromptEncoder::SpectrumOf(layer, cache) : pacer_->SpectrumFor(layer, cache, tail_);
  }

 private:
  transfer::Sender* sender_;
  ColdStore* store_;
  LinkPacer* pacer_;
};

// How many tokens of the prompt each layer holds for later queries.
std::vector<uint32_t> ReachOf(const ModelParams& params, uint32_t num_tokens) {
  std::vector<uint32_t> reach;
  for (const uint32_t window : params.windows) {
    reach.push_back(window == 0 ? num_tokens : std::min(window, num_tokens));
  }
  return reach;
}

Status MakePacer(PrefillJob& job, transfer::Sender& sender) {
  if (!job.ttft_target_ms) {
    return OkStatus();
  }
  if (!job.wire.spectrum) {
    return {StatusCode::kInvalidArgument, "a time to the first token is kept by a spectrum's budget; " +
                                              codec::PrecisionWord(job.wire) + " has none"};
  }
  job.pacer =
      std::make_unique<LinkPacer>(&sender, *job.wire.spectrum, job.begin, *job.ttft_target_ms,
                                  ReachOf(job.engine->model().params(), static_cast<uint32_t>(job.prompt.size())));
  return job.pacer->Check();
}

Status SendPrompt(PrefillJob& job, transfer::Sender& sender) {
  KVANT_RETURN_IF_ERROR(MakePacer(job, sender));
  const ModelParams& params = job.engine->model().params();
  KVANT_RETURN_IF_ERROR(codec::CheckPrecision(job.wire, params.head_dim));
  KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler,
                         Sampler::Create(*job.tokenizer, job.options->sampling));
  const auto num_tokens = static_cast<uint32_t>(job.prompt.size());
  KVANT_RETURN_IF_ERROR(sender.Handshake({.model = IdentityOf(*job.engine, *job.tokenizer),
                                          .precision = job.wire,
                                          .num_prompt_tokens = num_tokens,
                                          .num_context_tokens = job.context_tokens}));
  job.account = std::make_unique<cache::MemoryAccount>(job.options->memory_limit_bytes);
  KVANT_ASSIGN_OR_RETURN(cache::Sequence sequence, job.engine->NewSequence(job.wire, job.account.get()));
  if (job.wire.spectrum && job.wire.spectrum->refine) {
    job.cold_store = std::make_unique<ColdStore>(std::move(sequence), *job.wire.spectrum);
  }
  SendLayers consumer(&sender, job.wire, &job.engine->backend().pool(), job.cold_store.get(), job.pacer.get());
  PrefillOptions prefill;
  prefill.cancelled = job.callbacks->cancelled;
  if (job.callbacks->prefill) {
    prefill.progress = [&](uint32_t layers_done) { job.callbacks->prefill(layers_done, params.num_layers); };
  }
  std::vector<float> logits;
  KVANT_RETURN_IF_ERROR(job.engine->Prefill(job.cold_store ? job.cold_store->sequence() : sequence, job.prompt,
                                            consumer, prefill, &logits));
  sampler->AcceptPrompt(job.prompt);
  KVANT_ASSIGN_OR_RETURN(const int32_t first_token, sampler->Sample(logits));
  job.prefilled = Clock::now();
  return sender.Finish({.prompt_tokens = {job.prompt.begin(), job.prompt.end()},
                        .first_token = first_token,
                        .first_position = num_tokens,
                        .sampler = {job.options->sampling.seed, 1}});
}

}  // namespace

void RunPrefill(PrefillJob& job, transfer::Sender& sender) {
  job.status = SendPrompt(job, sender);
  if (!job.status.ok()) {
    sender.Abort(job.status);
  }
}

void DescribeLine(const PrefillJob& job, const transfer::Sender& sender, GenerateReport* report) {
  report->line_gbps = sender.report().line.mean_gbps();
  if (job.pacer) {
    report->pacing = job.pacer->Report(report->ttft_ms, report->prefill_ms);
  }
}

}  // namespace kvant::engine
