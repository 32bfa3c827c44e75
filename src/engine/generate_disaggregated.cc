#include <thread>

#include "engine/answer.h"
#include "kvant/engine/generate.h"
#include "kvant/engine/remote.h"
#include "kvant/transport/loopback.h"

namespace kvant::engine {
namespace {

// Which side failed first: a side that only heard of it says so.
Status Reason(const Status& prefill, const Status& decode, const GenerateCallbacks& callbacks) {
  const auto is_echo = [](const Status& status) {
    return status.ok() || status.code() == StatusCode::kTransportClosed || status.code() == StatusCode::kCancelled ||
           status.message().find("the peer reports: ") != std::string::npos;
  };
  if (prefill.code() == StatusCode::kCancelled && callbacks.cancelled && callbacks.cancelled()) {
    return prefill;
  }
  return is_echo(decode) ? prefill.WithContext("prefill side") : decode.WithContext("decode side");
}

}  // namespace

Result<GenerateReport> GenerateDisaggregated(Engine& prefill, Engine& decode, const Tokenizer& tokenizer,
                                             std::span<const int32_t> prompt, const DisaggregatedOptions& link,
                                             const GenerateOptions& options, const GenerateCallbacks& callbacks) {
  KVANT_ASSIGN_OR_RETURN(const uint32_t limit, AnswerLimit(decode.model().params(), prompt.size(), options));
  KVANT_ASSIGN_OR_RETURN(const transport::LoopbackPair pair,
                         transport::MakeLoopback({.gigabits_per_second = link.link_gbps}));
  cache::MemoryAccount account(options.memory_limit_bytes);
  const ServeOptions serve{.max_context_tokens = static_cast<uint32_t>(prompt.size()) + limit,
                           .account = &account,
                           .progress = callbacks.transfer};
  Status served;
  std::thread worker([&] { served = ServeSession(decode, tokenizer, *pair.second, serve).status(); });
  transport::TapEndpoint tapped(pair.first.get(), link.sent);
  transport::Endpoint& sending = link.sent ? tapped : *pair.first;
  Result<GenerateReport> report =
      GenerateRemote(prefill, tokenizer, prompt, sending, {.wire = link.wire, .ttft_target_ms = link.ttft_target_ms},
                     options, callbacks);
  pair.first->Close();
  worker.join();
  return report.ok() ? std::move(report) : Result<GenerateReport>(Reason(report.status(), served, callbacks));
}

}  // namespace kvant::engine
