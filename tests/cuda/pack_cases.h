#pragma once

#include <functional>

#include "case_filter.h"
#include "kvant/kernels/cuda/stream.h"
#include "timed_graph.h"

namespace kvant::cuda_test {

/// Launches once, captured into a CUDA graph: what a step of a server does with everything here.
inline bool RunCaptured(const std::function<Status(kernels::cuda::Stream)>& enqueue) {
  bool ok = true;
  const cuda_bench::TimedGraph graph(1, [&](cudaStream_t stream, int) { ok = enqueue({stream}).ok(); });
  cuda_bench::Stopwatch watch;
  graph.Seconds(watch);
  return ok;
}

struct CaseCount {
  int cases = 0;
  int failures = 0;
};

/// Rows and pages made on the GPU against the scalar references, byte for byte.
CaseCount RunPackCases(CaseFilter& filter);

/// Pair norms and attention mass against the scalar references.
CaseCount RunImportanceCases(CaseFilter& filter);

}  // namespace kvant::cuda_test
