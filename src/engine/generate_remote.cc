#include <optional>
#include <utility>
#include <variant>

#include "engine/answer.h"
#include "engine/cancel_watch.h"
#include "engine/send_prompt.h"
#include "kvant/engine/remote.h"
#include "kvant/transfer/answer.h"

namespace kvant::engine {
namespace {

constexpr uint64_t kSession = 1;  // a connection has one

wire::AnswerRequest RequestOf(const GenerateOptions& options, uint32_t limit) {
  const SamplingParams& sampling = options.sampling;
  return {.max_tokens = limit,
          .ignore_eos = options.ignore_eos,
          .temperature = sampling.temperature,
          .top_k = sampling.top_k,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .repeat_penalty = sampling.repeat_penalty,
          .repeat_last_n = sampling.repeat_last_n,
          .seed = sampling.seed,
          .grammar = sampling.grammar};
}

void DescribeEnd(const wire::AnswerEnd& end, GenerateReport* report) {
  report->finish_reason = end.reason == 0 ? FinishReason::kStop : FinishReason::kLength;
  report->completion_tokens = end.tokens;
  if (end.tokens > 1) {
    report->tpot_ms = static_cast<double>(end.decode_microseconds) / 1000.0 / (end.tokens - 1);
  }
  report->kv_bytes = end.kv_bytes;
  report->kv_bytes_fp16 = end.kv_bytes_fp16;
  report->kv_bytes_allocated = end.kv_bytes_allocated;
  report->bits = {end.payload_bits, end.effective_bits};
  report->tiers = {end.tier_tokens[0], end.tier_tokens[1], end.tier_tokens[2], end.tier_tokens[3]};
  report->wire_tokens_encoded = end.received_encoded;
  report->wire_tokens_exact = end.received_exact;
}

// Makes what the decode side asks for out of what was kept.
Status SendUpgrade(transfer::AnswerTaker& taker, const wire::UpgradeRequest& request, PrefillJob& job) {
  KVANT_ASSIGN_OR_RETURN(Buffer frame, job.cold_store->Answer(kSession, request, &job.engine->backend().pool()));
  return taker.SendUpgrade(std::move(frame));
}

Status TakeAnswer(transfer::AnswerTaker& taker, const wire::AnswerRequest& request, Clock::time_point begin,
                  PrefillJob& job, const GenerateCallbacks& callbacks, GenerateReport* report) {
  if (job.cold_store) {
    KVANT_ASSIGN_OR_RETURN(const wire::UpgradeOffer offer, job.cold_store->Offer());
    KVANT_RETURN_IF_ERROR(taker.Offer(offer, job.engine->model().cache_shape()));
  }
  KVANT_RETURN_IF_ERROR(taker.Ask(request));
  std::optional<wire::AnswerEnd> end;
  while (!end) {
    KVANT_ASSIGN_OR_RETURN(const transfer::AnswerTaker::Event event, taker.Next());
    if (const auto* upgrade = std::get_if<wire::UpgradeRequest>(&event)) {
      KVANT_RETURN_IF_ERROR(SendUpgrade(taker, *upgrade, job));
      continue;
    }
    if (report->ttft_ms == 0) {
      report->ttft_ms = MillisecondsBetween(begin, Clock::now());
    }
    if (const auto* text = std::get_if<wire::AnswerText>(&event)) {
      report->text += text->text;
      if (callbacks.text) {
        callbacks.text(text->text);
      }
    } else {
      end = std::get<wire::AnswerEnd>(event);
    }
  }
  DescribeEnd(*end, report);
  report->upgrade_bytes = taker.report().sent.of(wire::FrameType::kUpgrade);
  return OkStatus();
}

Status Cancelled() { return {StatusCode::kCancelled, "generation cancelled"}; }

}  // namespace

Result<GenerateReport> GenerateRemote(Engine& prefill, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                      transport::Endpoint& endpoint, const RemoteOptions& remote,
                                      const GenerateOptions& options, const GenerateCallbacks& callbacks) {
  const Clock::time_point begin = Clock::now();
  KVANT_ASSIGN_OR_RETURN(const uint32_t limit, AnswerLimit(prefill.model().params(), prompt.size(), options));
  PrefillJob job{
      &prefill,   &tokenizer,           prompt, remote.wire, static_cast<uint32_t>(prompt.size()) + limit, &options,
      &callbacks, remote.ttft_target_ms};
  transfer::Sender sender(&endpoint, {.session = kSession, .timeouts = remote.timeouts});
  {
    const CancelWatch watch(callbacks.cancelled, [&] { sender.Cancel(); });
    RunPrefill(job, sender);
  }
  if (!job.status.ok()) {
    return job.status.code() == StatusCode::kCancelled && callbacks.cancelled && callbacks.cancelled() ? Cancelled()
                                                                                                       : job.status;
  }
  GenerateReport report;
  report.prompt_tokens = static_cast<uint32_t>(prompt.size());
  report.prefill_ms = MillisecondsBetween(begin, job.prefilled);
  report.transfer_ms = MillisecondsBetween(job.prefilled, sender.report().last_message);
  report.wire_bytes = sender.report().sent.total() + sender.report().received.total();
  report.wire_bytes_fp16 = sender.report().kv_bytes_fp16;

  transfer::AnswerTaker taker(&endpoint, kSession, remote.timeouts);
  const CancelWatch watch(callbacks.cancelled, [&] { taker.Cancel(); });
  const Status taken = TakeAnswer(taker, RequestOf(options, limit), begin, job, callbacks, &report);
  if (taken.code() == StatusCode::kCancelled && callbacks.cancelled && callbacks.cancelled()) {
    return Cancelled();
  }
  KVANT_RETURN_IF_ERROR(taken.WithContext("decode worker"));
  DescribeLine(job, sender, &report);
  endpoint.Close();
  return report;
}

}  // namespace kvant::engine
