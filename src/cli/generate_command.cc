#include <fmt/core.h>

#include <atomic>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/context_rule.h"
#include "cli/frame_saver.h"
#include "cli/generate_flags.h"
#include "cli/generate_report.h"
#include "cli/interrupt.h"
#include "cli/profile_store.h"
#include "kvant/engine/remote.h"
#include "kvant/transport/ucx.h"

namespace kvant::cli {
namespace {

/// Engines and tokenizer; `decode` only where it is one of its own.
struct Opened {
  OpenedEngine main;
  OpenedEngine decode;
  std::unique_ptr<engine::Tokenizer> tokenizer;
};

Result<Opened> Open(const GenerateFlags& flags, Console& console) {
  Opened opened;
  const uint64_t steps = flags.disaggregated ? 3 : 2;
  console.ShowProgress("load", 0, steps, "model");
  KVANT_ASSIGN_OR_RETURN(opened.main, OpenEngine(flags.engine, flags.options.context));
  console.ShowProgress("load", 1, steps, "tokenizer");
  const engine::Model& model = *opened.main.model;
  KVANT_ASSIGN_OR_RETURN(opened.tokenizer, engine::Tokenizer::Load(model.path(), model.info()));
  if (flags.disaggregated) {
    console.ShowProgress("load", 2, steps, "decode engine");
    KVANT_ASSIGN_OR_RETURN(opened.decode, OpenEngine(flags.engine, flags.options.context));
  }
  console.ClearProgress();
  return opened;
}

Result<std::vector<int32_t>> Tokenize(const engine::Tokenizer& tokenizer, const std::string& prompt, bool raw) {
  if (raw) {
    return tokenizer.Encode(prompt, /*parse_special=*/true);
  }
  if (!tokenizer.has_chat_template()) {
    return Status(StatusCode::kNotFound, tokenizer.path() + ": the model has no chat template: use --raw");
  }
  const engine::ChatMessage message{"user", prompt};
  KVANT_ASSIGN_OR_RETURN(const std::string text, tokenizer.ApplyChatTemplate({&message, 1}));
  return tokenizer.Encode(text, /*parse_special=*/true);
}

/// One progress line for two things at once: layers are sent while later ones are computed.
struct LayerProgress {
  std::atomic<uint32_t> computed{0};
  std::atomic<uint32_t> sent{0};

  void Show(Console& console, uint32_t layers) const {
    const bool computing = computed < layers;
    console.ShowProgress(computing ? "prefill" : "transfer", computing ? computed : sent, layers,
                         fmt::format("{} of {} layers{}", computing ? computed.load() : sent.load(), layers,
                                     computing && sent > 0 ? fmt::format(", {} sent", sent.load()) : ""));
  }
};

engine::GenerateCallbacks Callbacks(Console& console) {
  engine::GenerateCallbacks callbacks;
  const auto progress = std::make_shared<LayerProgress>();
  callbacks.prefill = [&console, progress](uint32_t done, uint32_t layers) {
    progress->computed = done;
    progress->Show(console, layers);
  };
  callbacks.transfer = [&console, progress](uint32_t done, uint32_t layers) {
    progress->sent = done;
    progress->Show(console, layers);
  };
  callbacks.text = [&console](std::string_view text) {
    console.ClearProgress();
    console.PrintText(text);
  };
  callbacks.cancelled = Interrupted;
  return callbacks;
}

// Until the connection stands, a signal ends the process as it is.
Result<std::unique_ptr<transport::Endpoint>> ConnectToWorker(const GenerateFlags& flags, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const transport::Token token, ReadToken(flags.remote, console));
  const transport::Deadline deadline = transport::After(TimeoutsOf(flags.remote).handshake);
  console.ShowProgress("connect", 0, 1, flags.decode_worker);
  KVANT_ASSIGN_OR_RETURN(
      std::unique_ptr<transport::Endpoint> endpoint,
      transport::ConnectUcx(flags.decode_worker, deadline, {.gigabits_per_second = flags.link_gbps}));
  KVANT_RETURN_IF_ERROR(transport::Authenticate(*endpoint, token, transport::Side::kConnecting, deadline));
  console.ClearProgress();
  return endpoint;
}

std::optional<double> TtftTarget(const GenerateFlags& flags) {
  return flags.ttft_target_ms > 0 ? std::optional<double>(flags.ttft_target_ms) : std::nullopt;
}

Result<engine::GenerateReport> GenerateAtWorker(Opened& opened, const std::vector<int32_t>& tokens, const KvPlan& plan,
                                                const GenerateFlags& flags, FrameSaver& saver, Console& console) {
  const auto endpoint = ConnectToWorker(flags, console);
  if (!endpoint.ok()) {
    return endpoint.status().WithContext("--decode-worker");
  }
  CatchInterrupts();
  transport::TapEndpoint tapped(endpoint->get(), saver.tap());
  return engine::GenerateRemote(*opened.main.engine, *opened.tokenizer, tokens, saver.saves() ? tapped : **endpoint,
                                {*plan.wire, TimeoutsOf(flags.remote), TtftTarget(flags)}, flags.options,
                                Callbacks(console));
}

Result<engine::GenerateReport> Generate(Opened& opened, const std::vector<int32_t>& tokens, const KvPlan& plan,
                                        const GenerateFlags& flags, FrameSaver& saver, Console& console) {
  if (!flags.decode_worker.empty()) {
    return GenerateAtWorker(opened, tokens, plan, flags, saver, console);
  }
  CatchInterrupts();
  const engine::GenerateCallbacks callbacks = Callbacks(console);
  if (plan.wire) {
    return engine::GenerateDisaggregated(*opened.main.engine, *opened.decode.engine, *opened.tokenizer, tokens,
                                         {*plan.wire, flags.link_gbps, TtftTarget(flags), saver.tap()}, flags.options,
                                         callbacks);
  }
  return engine::GenerateLocal(*opened.main.engine, *opened.tokenizer, tokens, plan.kv, flags.options, callbacks);
}

Status RunGenerate(GenerateFlags flags, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const KvPlan plan, PlanKv(flags));
  KVANT_ASSIGN_OR_RETURN(const std::string prompt, ReadPrompt(flags));
  if (!flags.grammar_file.empty()) {
    KVANT_ASSIGN_OR_RETURN(flags.options.sampling.grammar, ReadTextFile("--grammar", flags.grammar_file));
    if (flags.options.sampling.grammar.empty()) {
      return {StatusCode::kInvalidArgument, "--grammar " + flags.grammar_file + ": the file is empty"};
    }
  }
  KVANT_RETURN_IF_ERROR(engine::CheckSampling(flags.options.sampling));
  flags.options.memory_limit_bytes = KvMemoryBytes(flags.kv_memory_mb);
  KVANT_ASSIGN_OR_RETURN(FrameSaver saver, FrameSaver::Create(flags.save_frames));
  KVANT_ASSIGN_OR_RETURN(Opened opened, Open(flags, console));
  KVANT_RETURN_IF_ERROR(CheckContext(flags.options.context, 0, opened.main.model->params(), console));
  KVANT_RETURN_IF_ERROR(UseProfiles(std::span(&plan.kv, 1), flags.profile, *opened.tokenizer, *opened.main.engine));
  KVANT_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokenize(*opened.tokenizer, prompt, flags.raw));
  KVANT_ASSIGN_OR_RETURN(const engine::GenerateReport report, Generate(opened, tokens, plan, flags, saver, console));
  KVANT_RETURN_IF_ERROR(saver.Close());
  const GenerateContext context{opened.main.model->path(), flags.engine.isa, flags.engine.threads, plan,
                                flags.link_gbps};
  console.PrintText("\n");
  if (!report.recomputed.empty()) {
    console.PrintWarning("--session: the whole prompt was computed: " + report.recomputed);
  }
  console.PrintJson(ReportJson(report, context));
  if (!console.json()) {
    console.PrintNote(fmt::format("\n{}", ReportTable(report, context)));
  }
  return OkStatus();
}

}  // namespace

void AddGenerateCommand(Program& program) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = program.AddCommand("generate", "Answer a prompt",
                                         [flags](Console& console) { return RunGenerate(*flags, console); });
  AddGenerateFlags(*command, *flags);
}

}  // namespace kvant::cli
