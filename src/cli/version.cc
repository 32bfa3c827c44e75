#include "cli/version.h"

#include <fmt/core.h>

#include "cli/commit.h"
#include "kvant/engine/backend.h"
#include "kvant/kernels/cpu.h"

namespace kvant::cli {

std::string VersionText() {
  std::string kernels;
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    kernels += fmt::format(" {}", kernels::IsaName(isa));
  }
  return fmt::format("kvant {} (commit {})\nggml {}\ninstruction sets: {}\nkernels:{}", KVANT_VERSION, kCommit,
                     engine::GgmlVersion(), kernels::CpuFeatureList(), kernels);
}

}  // namespace kvant::cli
