#include "cli/context_rule.h"

#include <fmt/core.h>

namespace kvant::cli {

Status CheckContext(uint32_t asked, uint32_t needed, const engine::ModelParams& params, Console& console) {
  const uint32_t meant_for = params.context_length;
  if (asked == 0 && needed > meant_for) {
    return {StatusCode::kCapacityExceeded,
            fmt::format("{} tokens are needed and the model is meant for {}: --context {} takes them all the same",
                        needed, meant_for, needed)};
  }
  if (asked > 0 && needed > asked) {
    return {StatusCode::kCapacityExceeded,
            fmt::format("{} tokens are needed and --context {} holds fewer", needed, asked)};
  }
  if (asked > meant_for) {
    console.PrintWarning(
        fmt::format("--context {} is more than the {} tokens the model is meant for", asked, meant_for));
  }
  return OkStatus();
}

}  // namespace kvant::cli
