#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cli/bench/decode_arm.h"
#include "cli/bench/measure.h"

namespace kvant::cli {

/// How long a decode bench is.
struct DecodePlan {
  uint32_t context = 0;  ///< tokens in the cache at the last step
  uint32_t prefill_rounds = 2;
  Rounds steps;                 ///< warm_up steps are those whose logits are compared
  double prompt_seconds = 1e9;  ///< the prompts of all arms may be expected to take

  uint32_t prompt_tokens() const { return context - steps.warm_up - steps.measured; }
};

/// Decodes one sequence in several arms, one step of each in turn. Arm 0 has a prompt of its own length; the others
/// hold the same tokens.
class DecodeRun {
 public:
  DecodeRun(std::vector<DecodeArm*> arms, uint32_t vocab_size, const DecodePlan& plan);

  /// Run the prompts: a short one to warm up, then the whole one, arm after arm, `prefill_rounds` times.
  /// Errors  kCapacityExceeded where the plan's seconds would not be enough; those of the arms
  Status Prefill(Console& console);

  /// Decode the same tokens in every arm and compare the logits with those of arm `reference`.
  /// Errors  kMismatch where arm `exact`, which computes the same function, is not close to it
  Status Compare(size_t reference, std::optional<size_t> exact);

  /// Decode on, and time it.
  Status Decode(Console& console);

  const std::vector<std::vector<double>>& prefill_seconds() const { return prefill_seconds_; }
  const std::vector<std::vector<double>>& step_seconds() const { return step_seconds_; }
  const std::vector<double>& divergences() const { return divergences_; }

 private:
  Status CheckPromptTime();
  int32_t NextToken();

  std::vector<DecodeArm*> arms_;
  DecodePlan plan_;
  std::vector<int32_t> tokens_;
  uint32_t num_used_ = 0;
  std::vector<std::vector<double>> prefill_seconds_;  ///< none of arm 0
  std::vector<std::vector<double>> step_seconds_;
  std::vector<double> divergences_;  ///< means over the compared steps
};

}  // namespace kvant::cli
