#pragma once

#include <cstdint>

/// Micro-benchmarks of what the decode kernels depend on. Results: docs/adr/0101-h200-microbenchmarks.md.
namespace kvant::cuda_bench {

int Multiprocessors();

void MeasureInstructions();  ///< lanes a clock; tensor rates, subnormal operands among them, and that they are exact
void MeasureLaunches();
void MeasureMemory();

}  // namespace kvant::cuda_bench
