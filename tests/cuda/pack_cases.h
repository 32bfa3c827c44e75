#pragma once

namespace kvant::cuda_test {

struct CaseCount {
  int cases = 0;
  int failures = 0;
};

/// Rows and pages made on the GPU against the scalar references, byte for byte.
CaseCount RunPackCases(const char* filter);

/// Pair norms and attention mass against the scalar references.
CaseCount RunImportanceCases(const char* filter);

}  // namespace kvant::cuda_test
