#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/format.h"
#include "cli/generate_flags.h"
#include "cli/interrupt.h"
#include "cli/profile_store.h"
#include "kvant/engine/generate.h"
#include "kvant/engine/profile.h"
#include "kvant/engine/session.h"

namespace kvant::cli {
namespace {

struct CalibrateFlags {
  EngineFlags engine;
  std::string kv = "pairs:2.0,map=model";
  std::string text;
  std::string profile;
  uint32_t tokens = 2048;
};

// What the model itself says: no data is needed, and it is what its caches will hold.
Result<std::vector<int32_t>> OwnText(engine::Engine& engine, const engine::Tokenizer& tokenizer, uint32_t tokens,
                                     Console& console) {
  KVANT_ASSIGN_OR_RETURN(std::vector<int32_t> text, tokenizer.Encode("\n", /*parse_special=*/false));
  engine::GenerateOptions options;
  options.max_tokens = tokens + tokens / 8 + 16;  // read again, a text may have fewer tokens
  options.context = options.max_tokens + static_cast<uint32_t>(text.size());
  options.ignore_eos = true;
  options.sampling.temperature = 1;
  engine::GenerateCallbacks callbacks;
  callbacks.cancelled = Interrupted;
  uint32_t said = 0;
  callbacks.text = [&](std::string_view) { console.ShowProgress("text", ++said, tokens, "tokens"); };
  KVANT_ASSIGN_OR_RETURN(const codec::Precision exact, codec::ParsePrecision("fp16"));
  KVANT_ASSIGN_OR_RETURN(const engine::GenerateReport report,
                         engine::GenerateLocal(engine, tokenizer, text, exact, options, callbacks));
  KVANT_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, tokenizer.Encode(report.text, /*parse_special=*/false));
  text.insert(text.end(), answer.begin(), answer.end());
  return text;
}

Result<std::vector<int32_t>> TextOf(const CalibrateFlags& flags, engine::Engine& engine,
                                    const engine::Tokenizer& tokenizer, Console& console) {
  std::vector<int32_t> tokens;
  if (flags.text.empty()) {
    KVANT_ASSIGN_OR_RETURN(tokens, OwnText(engine, tokenizer, flags.tokens, console));
  } else {
    KVANT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--text", flags.text));
    KVANT_ASSIGN_OR_RETURN(tokens, tokenizer.Encode(text, /*parse_special=*/false));
  }
  tokens.resize(std::min<size_t>(tokens.size(), flags.tokens));
  return tokens;
}

Status RunCalibrate(const CalibrateFlags& flags, Console& console) {
  Result<codec::Precision> kv = codec::ParsePrecision(flags.kv);
  KVANT_RETURN_IF_ERROR(kv.status().WithContext("--kv"));
  if (!kv->maps_of_model) {
    return {StatusCode::kInvalidArgument,
            "--kv " + flags.kv + ": has no maps of the model; give map=model with pair pages, eq=model with tiers"};
  }
  KVANT_ASSIGN_OR_RETURN(const OpenedEngine opened, OpenEngine(flags.engine));
  const engine::Model& model = *opened.model;
  KVANT_ASSIGN_OR_RETURN(const auto tokenizer, engine::Tokenizer::Load(model.path(), model.info()));
  KVANT_ASSIGN_OR_RETURN(const std::string path, ProfilePath(flags.profile, model, *kv));
  KVANT_RETURN_IF_ERROR(MakeProfileFolder(path));
  KVANT_RETURN_IF_ERROR(engine::CheckPlace(path));
  CatchInterrupts();
  KVANT_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, TextOf(flags, *opened.engine, *tokenizer, console));
  engine::CalibrateOptions options;
  options.cancelled = Interrupted;
  options.progress = [&](uint32_t done) {
    console.ShowProgress("calibrate", done, model.params().num_layers, "layers");
  };
  KVANT_ASSIGN_OR_RETURN(const engine::Profile profile, engine::Calibrate(*opened.engine, *kv, tokens, options));
  KVANT_RETURN_IF_ERROR(engine::SaveProfile(path, *opened.engine, *tokenizer, profile));
  console.ClearProgress();
  const std::string id = fmt::format("0x{:016x}", profile.Id());
  console.PrintJson({{"profile", path},
                     {"kv", codec::PrecisionWord(*kv)},
                     {"id", id},
                     {"tokens", profile.num_tokens},
                     {"text", flags.text.empty() ? Json(nullptr) : Json(flags.text)},
                     {"model", model.path()}});
  console.PrintText(FormatTable({{"profile", path},
                                 {"precision", codec::PrecisionWord(*kv)},
                                 {"maps", id},
                                 {"measured on", fmt::format("{} tokens of {}", profile.num_tokens,
                                                             flags.text.empty() ? "the model's own" : flags.text)}},
                                /*header=*/false));
  return OkStatus();
}

}  // namespace

void AddCalibrateCommand(Program& program) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = program.AddCommand("calibrate", "Measure a model's own maps, which all its prompts can share",
                                         [flags](Console& console) { return RunCalibrate(*flags, console); });
  AddEngineFlags(*command, flags->engine);
  AddOption(*command, "--kv", flags->kv, "Precision whose maps are the model's: pairs:B,map=model or int8,eq=model …");
  AddOption(*command, "--text", flags->text, "Text file to measure on (default: a text that the model itself writes)");
  AddOption(*command, "--tokens", flags->tokens, "Tokens of the text at most")->check(InRange(uint32_t{1}, 1U << 20));
  AddProfileFlag(*command, flags->profile);
}

}  // namespace kvant::cli
