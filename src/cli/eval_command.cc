#include <fmt/core.h>

#include <cmath>
#include <fstream>
#include <memory>

#include "cli/command.h"
#include "cli/context_rule.h"
#include "cli/engine_flags.h"
#include "cli/format.h"
#include "cli/generate_flags.h"
#include "cli/interrupt.h"
#include "cli/precision_list.h"
#include "cli/profile_store.h"
#include "kvant/engine/tokenizer.h"
#include "kvant/eval/perplexity.h"

namespace kvant::cli {
namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string task = "ppl";
  std::string kv = "int8,int4";
  std::string protocol = "prompt";
  std::string text = "../shared/evaldata/wikitext2/wiki.test.raw";
  std::string profile;
  std::string csv;
  uint32_t context = 0;
  bool quick = false;
  eval::PerplexityOptions options;
};

// --quick: small enough for a look, too small to quote. What was asked for by a flag of its own stays.
void Shrink(eval::PerplexityOptions* options) {
  const eval::PerplexityOptions defaults;
  if (options->window_tokens == defaults.window_tokens) {
    options->window_tokens = 512;
  }
  if (options->prompt_tokens == defaults.prompt_tokens) {
    options->prompt_tokens = options->window_tokens / 4 * 3;
  }
}

Result<eval::Protocol> ParseProtocol(const std::string& word) {
  if (word == "prompt") {
    return eval::Protocol::kExactPrompt;
  }
  if (word == "all") {
    return eval::Protocol::kAllQuantized;
  }
  return Status(StatusCode::kInvalidArgument, "unknown protocol '" + word + "'; known are prompt, all");
}

Result<std::vector<eval::Candidate>> ParseCandidates(const std::string& list) {
  std::vector<eval::Candidate> candidates;
  for (const std::string& word : SplitPrecisionList(list)) {
    KVANT_ASSIGN_OR_RETURN(const eval::Candidate candidate, eval::ParseCandidate(word));
    candidates.push_back(candidate);
  }
  return candidates;
}

std::vector<codec::Precision> PrecisionsOf(std::span<const eval::Candidate> candidates) {
  std::vector<codec::Precision> precisions;
  for (const eval::Candidate& candidate : candidates) {
    precisions.push_back(candidate.precision);
  }
  return precisions;
}

Result<std::vector<int32_t>> ReadTokens(const engine::Tokenizer& tokenizer, const std::string& path) {
  KVANT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--text", path));
  return tokenizer.Encode(text, false);
}

double PercentOf(double log_increase) { return 100.0 * std::expm1(log_increase); }

Json MetricJson(const std::string& word, const char* metric, double value, double spread,
                const codec::BitsPerElement& bits) {
  return {{"kv", word},
          {"metric", metric},
          {"value", value},
          {"spread", spread},
          {"bits", {{"payload", bits.payload}, {"effective", bits.effective}}}};
}

Json ResultsJson(const std::vector<eval::PerplexityResult>& results) {
  Json rows = Json::array();
  for (const eval::PerplexityResult& result : results) {
    const std::string word = eval::CandidateWord(result.candidate);
    const eval::Estimate& increase = result.log_perplexity_increase;
    rows.push_back(
        MetricJson(word, "perplexity", result.perplexity, result.perplexity * increase.standard_error, result.bits));
    rows.push_back(MetricJson(word, "perplexity_change_percent", PercentOf(increase.mean),
                              100.0 * increase.standard_error, result.bits));
    rows.push_back(MetricJson(word, "kl", result.kl.mean, result.kl.standard_error, result.bits));
    if (result.attention_kl) {
      rows.push_back(MetricJson(word, "attention_kl", result.attention_kl->mean, result.attention_kl->standard_error,
                                result.bits));
    }
  }
  return rows;
}

std::vector<std::vector<std::string>> ResultRows(const std::vector<eval::PerplexityResult>& results) {
  std::vector<std::vector<std::string>> rows = {
      {"kv", "perplexity", "change %", "± %", "KL", "±", "attention KL", "±", "payload bits", "effective bits"}};
  for (const eval::PerplexityResult& result : results) {
    const eval::Estimate& increase = result.log_perplexity_increase;
    rows.push_back({eval::CandidateWord(result.candidate), fmt::format("{:.4f}", result.perplexity),
                    fmt::format("{:+.3f}", PercentOf(increase.mean)),
                    fmt::format("{:.3f}", 100.0 * increase.standard_error), fmt::format("{:.6f}", result.kl.mean),
                    fmt::format("{:.6f}", result.kl.standard_error),
                    result.attention_kl ? fmt::format("{:.6f}", result.attention_kl->mean) : "-",
                    result.attention_kl ? fmt::format("{:.6f}", result.attention_kl->standard_error) : "-",
                    fmt::format("{:.3f}", result.bits.payload), fmt::format("{:.3f}", result.bits.effective)});
  }
  return rows;
}

Status CannotWrite(const std::string& path) { return {StatusCode::kIoError, "cannot write " + path}; }

Status WriteCsv(const std::string& path, const std::vector<std::vector<std::string>>& rows) {
  std::ofstream file(path);
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      file << (i > 0 ? ";" : "") << row[i];  // precision words hold commas
    }
    file << '\n';
  }
  file.close();
  return file ? OkStatus() : CannotWrite(path);
}

Status RunEval(EvalFlags& flags, Console& console) {
  if (flags.task != "ppl") {
    return {StatusCode::kInvalidArgument, "unknown task '" + flags.task + "'; known is ppl"};
  }
  KVANT_ASSIGN_OR_RETURN(flags.options.protocol, ParseProtocol(flags.protocol));
  KVANT_ASSIGN_OR_RETURN(const std::vector<eval::Candidate> candidates, ParseCandidates(flags.kv));
  if (flags.quick) {
    Shrink(&flags.options);
  }
  flags.options.cancelled = Interrupted;
  flags.options.progress = [&](uint32_t done, uint32_t total) { console.ShowProgress("eval", done, total, "passes"); };
  // Before the work, which takes minutes; what is there stays until then.
  if (!flags.csv.empty() && !std::ofstream(flags.csv, std::ios::app)) {
    return CannotWrite(flags.csv);
  }
  KVANT_ASSIGN_OR_RETURN(const OpenedEngine opened, OpenEngine(flags.engine, flags.context));
  KVANT_RETURN_IF_ERROR(CheckContext(flags.context, flags.options.window_tokens, opened.model->params(), console));
  KVANT_ASSIGN_OR_RETURN(const auto tokenizer, engine::Tokenizer::Load(opened.model->path(), opened.model->info()));
  KVANT_RETURN_IF_ERROR(UseProfiles(PrecisionsOf(candidates), flags.profile, *tokenizer, *opened.engine));
  KVANT_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokens(*tokenizer, flags.text));
  CatchInterrupts();
  KVANT_ASSIGN_OR_RETURN(const std::vector<eval::PerplexityResult> results,
                         eval::Perplexity(*opened.engine, tokens, candidates, flags.options));
  console.ClearProgress();
  const auto rows = ResultRows(results);
  if (!flags.csv.empty()) {
    KVANT_RETURN_IF_ERROR(WriteCsv(flags.csv, rows));
  }
  console.PrintJson({{"results", ResultsJson(results)},
                     {"model", opened.model->path()},
                     {"seed", 0},
                     {"protocol", flags.protocol},
                     {"windows", flags.options.num_windows},
                     {"window_tokens", flags.options.window_tokens},
                     {"prompt_tokens", flags.options.prompt_tokens}});
  console.PrintText(FormatTable(rows, /*header=*/true));
  return OkStatus();
}

}  // namespace

void AddEvalCommand(Program& program) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = program.AddCommand("eval", "Measure what a precision does to a model's predictions",
                                         [flags](Console& console) { return RunEval(*flags, console); });
  command->add_option("task", flags->task, "ppl: perplexity, and divergence from fp16")->capture_default_str();
  AddEngineFlags(*command, flags->engine);
  AddOption(*command, "--kv", flags->kv,
            "Precisions to compare with fp16, separated by commas; references that no cache holds, too: kitty:R%, "
            "reselect:WORD, keys:WORD");
  AddOption(*command, "--protocol", flags->protocol,
            "prompt: exact prompt, quantized, then the rest scored over it; all: every query meets quantized keys");
  AddOption(*command, "--text", flags->text, "Text file to score");
  AddProfileFlag(*command, flags->profile);
  AddOption(*command, "--windows", flags->options.num_windows, "Consecutive windows of the text");
  AddOption(*command, "--window-tokens", flags->options.window_tokens, "Tokens of a window");
  AddOption(*command, "--context", flags->context, "Tokens a window may have; 0 is what the model is meant for");
  AddOption(*command, "--prompt-tokens", flags->options.prompt_tokens, "Tokens of a window's prompt (protocol prompt)");
  AddOption(*command, "--csv", flags->csv, "Write the table to a file, fields separated by semicolons");
  AddSwitch(*command, "--quick", flags->quick, "Windows of 512 tokens, three quarters of them the prompt");
}

}  // namespace kvant::cli
