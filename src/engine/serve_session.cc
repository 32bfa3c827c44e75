#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/answer.h"
#include "engine/cancel_watch.h"
#include "engine/identity.h"
#include "engine/refiner.h"
#include "kvant/engine/remote.h"
#include "kvant/transfer/answer.h"
#include "kvant/transfer/receiver.h"

namespace kvant::engine {
namespace {

Status CheckTokens(const wire::Finish& finish, uint32_t vocab_size) {
  const auto unknown = [&](int32_t token) { return static_cast<uint32_t>(token) >= vocab_size; };
  if (unknown(finish.first_token) || std::any_of(finish.prompt_tokens.begin(), finish.prompt_tokens.end(), unknown)) {
    return {StatusCode::kInvalidArgument,
            "a token id beyond the vocabulary of " + std::to_string(vocab_size) + " entries"};
  }
  return OkStatus();
}

Status CheckRequest(const wire::AnswerRequest& request, const wire::Hello& hello) {
  const uint32_t room = hello.num_context_tokens - hello.num_prompt_tokens;
  if (request.max_tokens > room) {
    return {StatusCode::kCapacityExceeded, "an answer of " + std::to_string(request.max_tokens) +
                                               " tokens where the hello left room for " + std::to_string(room)};
  }
  return OkStatus();
}

GenerateOptions OptionsOf(const wire::AnswerRequest& request) {
  GenerateOptions options;
  options.max_tokens = request.max_tokens;
  options.ignore_eos = request.ignore_eos;
  options.sampling = {.temperature = request.temperature,
                      .top_k = request.top_k,
                      .top_p = request.top_p,
                      .min_p = request.min_p,
                      .repeat_penalty = request.repeat_penalty,
                      .repeat_last_n = request.repeat_last_n,
                      .seed = request.seed,
                      .grammar = request.grammar};
  return options;
}

wire::AnswerEnd EndOf(const GenerateReport& report) {
  const double decode_ms = report.tpot_ms.value_or(0) * (std::max(report.completion_tokens, 1U) - 1);
  return {.reason = report.finish_reason == FinishReason::kStop ? 0U : 1U,
          .tokens = report.completion_tokens,
          .decode_microseconds = static_cast<uint64_t>(decode_ms * 1000),
          .kv_bytes = report.kv_bytes,
          .kv_bytes_fp16 = report.kv_bytes_fp16,
          .kv_bytes_allocated = report.kv_bytes_allocated,
          .payload_bits = report.bits.payload,
          .effective_bits = report.bits.effective,
          .tier_tokens = {report.tiers.fp16, report.tiers.int8, report.tiers.int4, report.tiers.dropped},
          .received_encoded = report.wire_tokens_encoded,
          .received_exact = report.wire_tokens_exact};
}

// Decodes from a prompt that has arrived, and sends the text.
class Decoding {
 public:
  Decoding(Engine* engine, const Tokenizer* tokenizer, transfer::AnswerGiver* giver)
      : engine_(engine), tokenizer_(tokenizer), giver_(giver) {}

  Result<GenerateReport> Run(transfer::Received& received) {
    KVANT_RETURN_IF_ERROR(CheckTokens(received.finish, engine_->model().params().vocab_size));
    KVANT_ASSIGN_OR_RETURN(const wire::AnswerRequest request, giver_->TakeRequest());
    begin_ = Clock::now();
    KVANT_RETURN_IF_ERROR(CheckRequest(request, received.hello));
    const GenerateOptions options = OptionsOf(request);
    KVANT_RETURN_IF_ERROR(CheckSampling(options.sampling));
    KVANT_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler, Sampler::Create(*tokenizer_, options.sampling));
    sampler->AcceptPrompt(received.finish.prompt_tokens);
    sampler->AcceptGenerated(received.finish.first_token);
    GenerateCallbacks callbacks;
    callbacks.text = [this](std::string_view text) { Send(text); };
    callbacks.cancelled = [this] { return !IsWanted(); };
    GenerateReport report;
    report.prompt_tokens = received.hello.num_prompt_tokens;
    DescribeReceived(received.sequence, &report);
    report_ = &report;
    Refiner refiner(giver_);
    KVANT_RETURN_IF_ERROR(refiner.CheckOffer(received.sequence));
    Answer answer(engine_, tokenizer_, sampler.get(), &options, &callbacks, &refiner);
    const Status decoded = answer.Run(received.sequence, received.finish.first_token, request.max_tokens, &report);
    KVANT_RETURN_IF_ERROR(peer_);
    KVANT_RETURN_IF_ERROR(decoded);
    KVANT_RETURN_IF_ERROR(giver_->Finish(EndOf(report)));
    report.text.clear();
    return report;
  }

 private:
  void Send(std::string_view text) {
    if (peer_.ok()) {
      const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_).count();
      peer_ = giver_->SendText({static_cast<uint64_t>(passed), report_->completion_tokens, std::string(text)});
    }
  }
  bool IsWanted() {
    if (peer_.ok()) {
      peer_ = giver_->CheckPeer();
    }
    return peer_.ok();
  }

  Engine* engine_;
  const Tokenizer* tokenizer_;
  transfer::AnswerGiver* giver_;
  const GenerateReport* report_ = nullptr;
  Clock::time_point begin_{};
  Status peer_;  // why nothing more can be sent
};

}  // namespace

Result<GenerateReport> ServeSession(Engine& decode, const Tokenizer& tokenizer, transport::Endpoint& endpoint,
                                    const ServeOptions& options) {
  transfer::Receiver receiver(&endpoint, {.model = IdentityOf(decode, tokenizer),
                                          .max_context_tokens = options.max_context_tokens,
                                          .windows = decode.model().params().windows,
                                          .isa = decode.backend().isa(),
                                          .account = options.account,
                                          .timeouts = options.timeouts,
                                          .progress = options.progress});
  std::optional<CancelWatch> watch(std::in_place, options.cancelled, [&] { receiver.Cancel(); });
  KVANT_ASSIGN_OR_RETURN(transfer::Received received, receiver.Run());
  transfer::AnswerGiver giver(&endpoint, options.timeouts);
  watch.emplace(options.cancelled, [&] { giver.Cancel(); });
  Decoding decoding(&decode, &tokenizer, &giver);
  Result<GenerateReport> report = decoding.Run(received);
  if (!report.ok()) {
    return giver.Abort(report.status());
  }
  endpoint.Close();
  return report;
}

}  // namespace kvant::engine
