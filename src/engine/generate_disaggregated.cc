#include <optional>
#include <thread>
#include <utility>

#include "engine/answer.h"
#include "engine/cancel_watch.h"
#include "engine/identity.h"
#include "engine/send_prompt.h"
#include "kvant/engine/generate.h"
#include "kvant/transfer/receiver.h"
#include "kvant/transport/loopback.h"

namespace kvant::engine {
namespace {

void DescribeWire(const transport::Counters& counted, const transfer::Receiver& receiver,
                  const cache::Sequence& sequence, GenerateReport* report) {
  report->wire_bytes = counted.received_bytes + counted.sent_bytes;
  report->wire_bytes_fp16 = receiver.report().kv_bytes_fp16;
  DescribeReceived(sequence, report);
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
