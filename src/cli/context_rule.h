#pragma once

#include <cstdint>

#include "cli/console.h"
#include "kvant/base/status.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::cli {

/// The one rule on contexts: a model runs beyond what it is meant for only where --context says so, and then with a
/// warning. `asked` is --context, 0 where it was not given; `needed` what will be used, 0 where that is not known yet.
///
/// Errors  kCapacityExceeded with both numbers: more is needed than was asked for, or than the model is meant for
Status CheckContext(uint32_t asked, uint32_t needed, const engine::ModelParams& params, Console& console);

}  // namespace kvant::cli
