#include "kvant/quant/two_means.h"

#include <algorithm>

#include "kvant/base/check.h"

namespace kvant::quant {
namespace {

struct Sum {
  double sum = 0;
  double count = 0;
  void Add(float x) {
    sum += static_cast<double>(x);
    count += 1;
  }
  float Mean() const { return static_cast<float>(sum / count); }
};

}  // namespace

GroupParams FitTwoMeans(std::span<const float> x) {
  KVANT_CHECK(!x.empty(), "a group has at least one element");
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float middle = 0.5F * (*low + *high);
  Sum lower;
  Sum upper;
  for (const float each : x) {
    (each < middle ? lower : upper).Add(each);
  }
  if (lower.count == 0) {
    return {Half{}, ToHalf(*low + 0.0F)};  // all are equal; never -0
  }
  const Half zero = ToHalf(lower.Mean() + 0.0F);
  // The lower point is taken as it is stored, which may lie above the upper one by its rounding.
  return {ToHalf(std::max(0.0F, upper.Mean() - ToFloat(zero)) + 0.0F), zero};
}

}  // namespace kvant::quant
