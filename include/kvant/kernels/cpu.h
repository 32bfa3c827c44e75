#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::kernels {

/// Instruction sets the CPU kernels are written for, from the reference to the fastest.
enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvx512Vnni = 2 };

std::string_view IsaName(Isa isa);  ///< "scalar", "avx2", "avx512-vnni": the words of --isa
/// Errors  kInvalidArgument names the word and the valid ones; kModelUnsupported where this CPU lacks it
Result<Isa> ParseIsa(std::string_view word);

/// What this CPU and its operating system both allow (CPUID and XGETBV), best last; always has kScalar.
const std::vector<Isa>& AvailableIsas();
inline Isa BestIsa() { return AvailableIsas().back(); }

/// Whether kAvx512Vnni here comes with VBMI and GFNI, which attention to pair pages takes; without them it is AVX2's.
bool HasLookUps();

/// Every instruction set found that matters to us ("avx2 fma f16c avx512f …"), for --version and bug reports.
std::string CpuFeatureList();

}  // namespace kvant::kernels
