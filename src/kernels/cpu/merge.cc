#include <algorithm>
#include <cmath>

#include "kvant/base/check.h"
#include "kvant/kernels/attend.h"

namespace kvant::kernels {

float MergePartials(std::span<const float* const> outs, std::span<const float> maxes, std::span<const float> sums,
                    std::span<float> dst) {
  KVANT_CHECK(!outs.empty() && outs.size() == maxes.size() && outs.size() == sums.size(), "one max and sum a partial");
  const float max = *std::max_element(maxes.begin(), maxes.end());
  KVANT_CHECK(max > -INFINITY, "every row sees at least its own token");
  std::fill(dst.begin(), dst.end(), 0.0F);
  float sum = 0.0F;
  for (size_t i = 0; i < outs.size(); ++i) {
    if (sums[i] == 0.0F) {
      continue;
    }
    const float weight = std::exp(maxes[i] - max);
    sum += weight * sums[i];
    const float* out = outs[i];
    for (size_t c = 0; c < dst.size(); ++c) {
      dst[c] += weight * out[c];
    }
  }
  const float inverse = 1.0F / sum;
  for (float& value : dst) {
    value *= inverse;
  }
  return max + std::log(sum);
}

}  // namespace kvant::kernels
