#include "cli/bench/decode_run.h"

#include <fmt/core.h>

#include <numeric>
#include <random>

#include "cli/bench/divergence.h"

namespace kvant::cli {
namespace {

constexpr size_t kWarmUpTokens = 32;

// Quantized weights meet activations that libllama and we round in different orders; a fault is far beyond this.
constexpr double kExactDivergence = 0.05;

std::vector<int32_t> RandomTokens(uint32_t count, uint32_t vocab_size) {
  std::mt19937 generator(4);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(generator() % vocab_size);
  }
  return tokens;
}

}  // namespace

DecodeRun::DecodeRun(std::vector<DecodeArm*> arms, uint32_t vocab_size, const DecodePlan& plan)
    : arms_(std::move(arms)),
      plan_(plan),
      tokens_(RandomTokens(plan.context, vocab_size)),
      num_used_(plan.prompt_tokens()),
      prefill_seconds_(1),
      divergences_(arms_.size()) {}

Status DecodeRun::Prefill(Console& console) {
  const auto prompt = std::span<const int32_t>(tokens_).first(plan_.prompt_tokens());
  for (DecodeArm* arm : arms_) {
    console.ShowProgress("prefill", 0, 1, "warm-up, " + arm->name());
    KVANT_RETURN_IF_ERROR(arm->Prefill(prompt.first(std::min(prompt.size(), kWarmUpTokens))));
  }
  KVANT_RETURN_IF_ERROR(CheckPromptTime());
  KVANT_RETURN_IF_ERROR(arms_[0]->Prefill(prompt));
  std::vector<Turn> turns;
  for (size_t i = 1; i < arms_.size(); ++i) {
    turns.push_back({arms_[i]->name(), [arm = arms_[i], prompt](uint32_t) { return arm->Prefill(prompt); }});
  }
  KVANT_ASSIGN_OR_RETURN(auto seconds, Interleave(turns, {0, plan_.prefill_rounds}, "prefill", console));
  std::move(seconds.begin(), seconds.end(), std::back_inserter(prefill_seconds_));
  return OkStatus();
}

Status DecodeRun::CheckPromptTime() {
  const auto prompt = std::span<const int32_t>(tokens_).first(plan_.prompt_tokens());
  const auto sample = prompt.first(std::min(prompt.size(), kWarmUpTokens));
  const Clock::time_point start = Clock::now();
  KVANT_RETURN_IF_ERROR(arms_.back()->Prefill(sample));
  const double expected = SecondsSince(start) * static_cast<double>(prompt.size() * (arms_.size() - 1)) /
                          static_cast<double>(sample.size());
  if (expected > plan_.prompt_seconds) {
    return {StatusCode::kCapacityExceeded,
            fmt::format("{} prompts of {} tokens take more than {:.0f} s here, too long for --quick: give a smaller "
                        "--context, or leave --quick out",
                        arms_.size() - 1, prompt.size(), expected)};
  }
  return OkStatus();
}

int32_t DecodeRun::NextToken() { return tokens_[num_used_++]; }

Status DecodeRun::Compare(size_t reference, std::optional<size_t> exact) {
  for (uint32_t step = 0; step < plan_.steps.warm_up; ++step) {
    const int32_t token = NextToken();
    for (DecodeArm* arm : arms_) {
      KVANT_RETURN_IF_ERROR(arm->Step(token).WithContext(arm->name()));
    }
    for (size_t i = 0; i < arms_.size(); ++i) {
      divergences_[i] += Divergence(arms_[reference]->logits(), arms_[i]->logits()) / plan_.steps.warm_up;
    }
  }
  if (exact && !(divergences_[*exact] <= kExactDivergence)) {
    return {StatusCode::kMismatch,
            fmt::format("{} and {} are to compute the same, and their predictions differ by KL {:.4f}",
                        arms_[reference]->name(), arms_[*exact]->name(), divergences_[*exact])};
  }
  return OkStatus();
}

Status DecodeRun::Decode(Console& console) {
  std::vector<Turn> turns;
  int32_t token = 0;
  for (size_t i = 0; i < arms_.size(); ++i) {
    turns.push_back({arms_[i]->name(), [this, i, &token](uint32_t) {
                       token = i == 0 ? NextToken() : token;
                       return arms_[i]->Step(token);
                     }});
  }
  Rounds rounds = plan_.steps;
  rounds.warm_up = 0;
  KVANT_ASSIGN_OR_RETURN(step_seconds_, Interleave(turns, rounds, "decode", console));
  return OkStatus();
}

}  // namespace kvant::cli
