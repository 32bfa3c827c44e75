#include <fmt/core.h>

#include <memory>
#include <thread>

#include "cli/command.h"
#include "cli/context_rule.h"
#include "cli/engine_flags.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/remote_flags.h"
#include "kvant/engine/remote.h"
#include "kvant/transport/ucx.h"

namespace kvant::cli {
namespace {

constexpr std::chrono::milliseconds kSlice{100};  // of waiting, between looks at the signals
constexpr std::chrono::seconds kGreeting{2};

struct DecodeWorkerFlags {
  EngineFlags engine;
  RemoteFlags remote;
  std::string listen = "127.0.0.1:7333";
  uint32_t sessions = 0;
  uint32_t context = 0;
  uint64_t kv_memory_mb = 0;
};

// Closes a connection when an end is asked for, so that whoever waits on it wakes.
class CloseOnInterrupt {
 public:
  explicit CloseOnInterrupt(transport::Endpoint* endpoint)
      : thread_([endpoint](const std::stop_token& stop) {
          while (!stop.stop_requested() && !Interrupted()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          if (Interrupted()) {
            endpoint->Close();
          }
        }) {}

 private:
  std::jthread thread_;
};

class Worker {
 public:
  Worker(const DecodeWorkerFlags& flags, Console& console)
      : flags_(flags), console_(console), account_(KvMemoryBytes(flags.kv_memory_mb)) {}

  Status Open() {
    KVANT_ASSIGN_OR_RETURN(token_, ReadToken(flags_.remote, console_));
    KVANT_ASSIGN_OR_RETURN(const bool loopback, transport::IsLoopbackAddress(flags_.listen));
    if (!loopback && !token_.has_value()) {
      return {
          StatusCode::kInvalidArgument,
          fmt::format("--listen {} is open to the network: give a token, --token-file or KVANT_TOKEN", flags_.listen)};
    }
    // Before the model, which takes a while to load: an address that cannot be had is said at once.
    KVANT_ASSIGN_OR_RETURN(listener_, transport::UcxListener::Listen(flags_.listen, {.greeting = kGreeting}));
    KVANT_ASSIGN_OR_RETURN(opened_, OpenEngine(flags_.engine, flags_.context));
    const engine::Model& model = *opened_.model;
    KVANT_RETURN_IF_ERROR(CheckContext(flags_.context, 0, model.params(), console_));
    KVANT_ASSIGN_OR_RETURN(tokenizer_, engine::Tokenizer::Load(model.path(), model.info()));
    return OkStatus();
  }

  void Run() {
    console_.PrintNote(fmt::format("kvant: listening on {}", listener_->address()));
    while (!Interrupted() && (flags_.sessions == 0 || sessions_ < flags_.sessions)) {
      Result<std::unique_ptr<transport::Endpoint>> endpoint = listener_->Accept(transport::After(kSlice));
      if (endpoint.ok() || endpoint.status().code() != StatusCode::kTimeout) {
        ++sessions_;
        Report(endpoint.ok() ? Serve(**endpoint) : Result<engine::GenerateReport>(endpoint.status()));
      }
    }
  }

  Json Summary() const {
    return {{"address", listener_->address()},
            {"sessions", sessions_},
            {"failed", failed_},
            {"kv_bytes", account_.in_use_bytes()},
            {"model", opened_.model->path()}};
  }

 private:
  Result<engine::GenerateReport> Serve(transport::Endpoint& endpoint) {
    const transfer::Timeouts timeouts = TimeoutsOf(flags_.remote);
    {
      const CloseOnInterrupt close(&endpoint);
      KVANT_RETURN_IF_ERROR(
          transport::Authenticate(endpoint, token_, transport::Side::kAccepting, transport::After(timeouts.handshake)));
    }
    const uint32_t context = flags_.context > 0 ? flags_.context : opened_.model->params().context_length;
    return engine::ServeSession(
        *opened_.engine, *tokenizer_, endpoint,
        {.max_context_tokens = context, .timeouts = timeouts, .account = &account_, .cancelled = Interrupted});
  }

  // One line a session: what it took, or why it failed.
  void Report(const Result<engine::GenerateReport>& report) {
    const std::string cache = fmt::format("{} of cache in use", FormatBytes(account_.in_use_bytes()));
    if (report.ok()) {
      console_.PrintNote(fmt::format("kvant: session {}: {} prompt tokens, {} answered, ended by {}; {}", sessions_,
                                     report->prompt_tokens, report->completion_tokens,
                                     engine::FinishReasonName(report->finish_reason), cache));
      return;
    }
    ++failed_;
    console_.PrintNote(fmt::format("kvant: session {}: failed, {}: {}; {}", sessions_,
                                   StatusCodeName(report.status().code()), Printable(report.status().message()),
                                   cache));
  }

  const DecodeWorkerFlags& flags_;
  Console& console_;
  transport::Token token_;
  OpenedEngine opened_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::unique_ptr<transport::UcxListener> listener_;
  cache::MemoryAccount account_;
  uint32_t sessions_ = 0;
  uint32_t failed_ = 0;
};

Status RunDecodeWorker(const DecodeWorkerFlags& flags, Console& console) {
  Worker worker(flags, console);
  KVANT_RETURN_IF_ERROR(worker.Open());
  CatchInterrupts();
  worker.Run();
  console.PrintJson(worker.Summary());
  return OkStatus();
}

}  // namespace

void AddDecodeWorkerCommand(Program& program) {
  auto flags = std::make_shared<DecodeWorkerFlags>();
  CLI::App* command =
      program.AddCommand("decode-worker", "Decode for prefill sides that connect, one session after another",
                         [flags](Console& console) { return RunDecodeWorker(*flags, console); });
  AddOption(*command, "--listen", flags->listen,
            "HOST:PORT, :PORT or PORT; without a host this machine alone, port 0 takes a free one");
  AddEngineFlags(*command, flags->engine);
  AddRemoteFlags(*command, flags->remote);
  AddKvMemoryFlag(*command, flags->kv_memory_mb);
  AddOption(*command, "--sessions", flags->sessions, "End after so many connections; 0 is never");
  AddOption(*command, "--context", flags->context,
            "Tokens of a prompt and its answer together at most; 0 is what the model is meant for");
}

}  // namespace kvant::cli
