#pragma once

namespace kvant::cuda_test {

struct CaseCount {
  int cases = 0;
  int failures = 0;
};

/// Rows and pages made on the GPU against the scalar references, byte for byte.
CaseCount RunPackCases(const char* filter);

}  // namespace kvant::cuda_test
