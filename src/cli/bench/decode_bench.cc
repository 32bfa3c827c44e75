#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/decode_run.h"
#include "cli/bench/kvant_arm.h"
#include "cli/bench/llama_arm.h"
#include "cli/bench/report.h"
#include "cli/context_rule.h"
#include "cli/engine_flags.h"
#include "cli/precision_list.h"
#include "cli/profile_store.h"

namespace kvant::cli {
namespace {

struct DecodeFlags {
  EngineFlags engine;
  std::string kv = "fp16,int8,int4";
  std::string compare;
  uint32_t context = 0;
  bool quick = false;
};

constexpr uint32_t kContext = 4096;
constexpr uint32_t kQuickContext = 512;
constexpr uint32_t kMinContext = 256;

/// Arms in the order of their turns: depth 0, ours, libllama's.
struct DecodeArms {
  std::vector<std::unique_ptr<DecodeArm>> all;
  size_t first_rival = 0;  ///< all.size() without rivals

  bool has_rivals() const { return first_rival < all.size(); }
  std::vector<DecodeArm*> pointers() const {
    std::vector<DecodeArm*> arms;
    std::transform(all.begin(), all.end(), std::back_inserter(arms), [](const auto& arm) { return arm.get(); });
    return arms;
  }
};

DecodePlan PlanOf(const DecodeFlags& flags) {
  DecodePlan plan;
  plan.steps = {8, 80};
  if (flags.quick) {
    plan.steps = {4, 20, /*seconds=*/8};
    plan.prefill_rounds = 1;
    plan.prompt_seconds = 25;
  }
  plan.context = flags.context > 0 ? flags.context : flags.quick ? kQuickContext : kContext;
  return plan;
}

Result<DecodeArms> MakeArms(const std::vector<codec::Precision>& precisions, engine::Engine* engine,
                            const LlamaModel* rival, uint32_t context, cache::MemoryAccount* account) {
  DecodeArms arms;
  arms.all.push_back(std::make_unique<DepthZeroArm>(engine, account));
  for (const codec::Precision& precision : precisions) {
    arms.all.push_back(std::make_unique<KvantArm>(engine, precision, account));
  }
  arms.first_rival = arms.all.size();
  if (rival != nullptr) {
    for (const bool flash_attention : {true, false}) {
      KVANT_ASSIGN_OR_RETURN(auto arm,
                             LlamaArm::Create(rival, flash_attention, context, engine->model().cache_shape()));
      arms.all.push_back(std::move(arm));
    }
  }
  return arms;
}

/// What the logits are compared with: libllama's first arm, else our fp16, else our first. And who must equal it.
struct Roles {
  size_t reference = 1;
  std::optional<size_t> exact;
};

Roles RolesOf(const DecodeArms& arms, const std::vector<codec::Precision>& precisions) {
  const auto exact = std::find_if(precisions.begin(), precisions.end(), [](const auto& p) { return p.is_exact(); });
  const size_t exact_arm = 1 + static_cast<size_t>(exact - precisions.begin());
  const bool has_exact = exact != precisions.end();
  if (arms.has_rivals()) {
    return {arms.first_rival, has_exact ? std::optional(exact_arm) : std::nullopt};
  }
  return {has_exact ? exact_arm : 1, std::nullopt};
}

size_t FastestOf(const std::vector<ArmReport>& arms, size_t first) {
  const auto slower = [](const ArmReport& a, const ArmReport& b) { return a.rate.median < b.rate.median; };
  return static_cast<size_t>(std::max_element(arms.begin() + static_cast<ptrdiff_t>(first), arms.end(), slower) -
                             arms.begin());
}

/// Prompt tokens a second, and with rivals the ratio to the faster rival; arm 0 has no prompt to speak of.
void AddPrefill(const DecodeRun& run, const DecodeArms& arms, uint32_t prompt_tokens, BenchReport* report) {
  ReportColumn rate{"prefill_tok_s", "prefill tok/s", 0, {std::nullopt}};
  double rival = 0;
  for (size_t i = 1; i < arms.all.size(); ++i) {
    rate.values.emplace_back(prompt_tokens / Summarize(run.prefill_seconds()[i]).median);
    rival = i >= arms.first_rival ? std::max(rival, *rate.values[i]) : rival;
  }
  report->columns.push_back(rate);
  if (arms.has_rivals()) {
    ReportColumn ratio{"prefill_ratio", "x llama.cpp", 2, {std::nullopt}};
    std::transform(rate.values.begin() + 1, rate.values.end(), std::back_inserter(ratio.values),
                   [&](const auto& value) { return *value / rival; });
    report->columns.push_back(std::move(ratio));
  }
}

void AddShares(const DecodeRun& run, const Roles& roles, BenchReport* report) {
  ReportColumn share{"share_of_depth_0", "of depth-0", 2, {}};
  ReportColumn divergence{"kl", "KL", 4, {}};
  for (size_t i = 0; i < report->arms.size(); ++i) {
    share.values.emplace_back(report->arms[i].rate.median / report->arms[0].rate.median);
    divergence.values.emplace_back(i == 0 ? std::nullopt : std::optional(run.divergences()[i]));
  }
  report->columns.push_back(std::move(share));
  report->columns.push_back(std::move(divergence));
  report->facts["reference"] = report->arms[roles.reference].name;
}

BenchReport ReportOf(const DecodeRun& run, const DecodeArms& arms, const Roles& roles, const DecodePlan& plan) {
  BenchReport report;
  for (size_t i = 0; i < arms.all.size(); ++i) {
    report.arms.push_back(ReportArm(arms.all[i]->name(), "tok/s", 1, arms.all[i]->kv_bytes(), run.step_seconds()[i]));
  }
  report.facts = {{"context", plan.context}, {"prompt_tokens", plan.prompt_tokens()}};
  report.notes = {fmt::format("{} tokens in the cache at the last of {} steps; bytes: keys and values a step reads",
                              plan.context, plan.steps.measured)};
  if (arms.has_rivals()) {
    const size_t rival = FastestOf(report.arms, arms.first_rival);
    const double limit = report.arms[0].rate.median / report.arms[rival].rate.median;
    report.AddRatio(rival, "x llama.cpp");
    report.facts.update({{"rival", report.arms[rival].name}, {"limit", limit}});
    report.notes.push_back(fmt::format("attention at no cost would be {:.2f} x {}", limit, report.arms[rival].name));
  } else {
    report.AddRatio(0, "x depth-0");
  }
  AddShares(run, roles, &report);
  AddPrefill(run, arms, plan.prompt_tokens(), &report);
  report.notes.push_back(fmt::format("KL: of next-token predictions, from {}'s", report.arms[roles.reference].name));
  return report;
}

Status RunDecodeBench(const DecodeFlags& flags, Console& console) {
  KVANT_ASSIGN_OR_RETURN(const std::vector<codec::Precision> precisions, ParsePrecisionList(flags.kv));
  console.ShowProgress("load", 0, 1, "model");
  KVANT_ASSIGN_OR_RETURN(const OpenedEngine opened, OpenEngine(flags.engine));
  const engine::ModelParams& params = opened.model->params();
  if (WantProfiles(precisions)) {
    KVANT_ASSIGN_OR_RETURN(const auto tokenizer, engine::Tokenizer::Load(opened.model->path(), opened.model->info()));
    KVANT_RETURN_IF_ERROR(UseProfiles(precisions, /*given=*/"", *tokenizer, *opened.engine));
  }
  const DecodePlan plan = PlanOf(flags);
  KVANT_RETURN_IF_ERROR(CheckContext(flags.context, plan.context, params, console));
  std::unique_ptr<LlamaModel> rival;
  if (!flags.compare.empty()) {
    KVANT_ASSIGN_OR_RETURN(rival, LlamaModel::Load(opened.model->path(), flags.engine.threads));
  }
  cache::MemoryAccount account;
  KVANT_ASSIGN_OR_RETURN(const DecodeArms arms,
                         MakeArms(precisions, opened.engine.get(), rival.get(), plan.context, &account));
  const Roles roles = RolesOf(arms, precisions);
  DecodeRun run(arms.pointers(), params.vocab_size, plan);
  KVANT_RETURN_IF_ERROR(run.Prefill(console));
  KVANT_RETURN_IF_ERROR(run.Compare(roles.reference, roles.exact));
  KVANT_RETURN_IF_ERROR(run.Decode(console));
  BenchReport report = ReportOf(run, arms, roles, plan);
  report.facts["model"] = opened.model->path();
  report.isa = flags.engine.isa;
  report.threads = flags.engine.threads;
  console.PrintJson(ToJson(report));
  console.PrintText(ToText(report));
  return OkStatus();
}

}  // namespace

void AddDecodeBench(CLI::App& bench, Work* chosen) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = AddBench(
      bench, "decode", "Decode a model's next tokens over caches of several precisions",
      [flags](Console& console) { return RunDecodeBench(*flags, console); }, chosen);
  AddEngineFlags(*command, flags->engine);
  AddOption(*command, "--kv", flags->kv, "Precisions that are compared, separated by commas");
  AddOption(*command, "--compare", flags->compare,
            "llama.cpp: libllama over its f16 cache, with and without flash attention; the faster one is the rival")
      ->check([](const std::string& word) {
        return word == "llama.cpp" ? std::string() : fmt::format("unknown rival '{}'; known is llama.cpp", word);
      });
  AddOption(*command, "--context", flags->context,
            fmt::format("Tokens in the cache at the last step (default: {}, with --quick {})", kContext, kQuickContext))
      ->default_str("")
      ->check(InRange(kMinContext, 1U << 24));
  AddSwitch(*command, "--quick", flags->quick, "A short context and few steps, for a look: ends within 45 s");
}

}  // namespace kvant::cli
