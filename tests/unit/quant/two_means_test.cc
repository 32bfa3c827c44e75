#include "kvant/quant/two_means.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kvant/quant/mid_rise.h"

namespace kvant::quant {
namespace {

double SquaredError(GroupParams params, const std::vector<float>& x) {
  std::vector<uint8_t> codes(x.size());
  std::vector<float> decoded(x.size());
  EncodeMidRise(1, params, x, codes);
  DecodeGroup(Rule::kAffine, 1, params, codes, decoded);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += static_cast<double>((x[i] - decoded[i]) * (x[i] - decoded[i]));
  }
  return sum / static_cast<double>(x.size());
}

TEST(TwoMeans, AreTheMeansOfBothHalvesOfTheRange) {
  const std::vector<float> x = {-1, -0.5F, 0, 0.25F, 0.5F, 1, 1.5F, 2};  // the middle, 0.5, belongs to the upper half
  const GroupParams params = FitTwoMeans(x);
  EXPECT_EQ(ToFloat(params.zero), -0.3125F);
  EXPECT_EQ(ToFloat(params.scale), 1.25F + 0.3125F);
  std::vector<uint8_t> codes(x.size());
  EncodeMidRise(1, params, x, codes);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 1, 1}));
}

// methods.md 5.2: 0.37 of a normal group of 128 is left, 0.62 with quarter points.
TEST(TwoMeans, LoseLessThanQuarterPoints) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  double means = 0;
  double quarters = 0;
  for (int group = 0; group < 200; ++group) {
    std::vector<float> x(128);
    for (float& each : x) each = ToFloat(ToHalf(normal(random)));
    means += SquaredError(FitTwoMeans(x), x) / 200;
    quarters += SquaredError(FitMidRise(1, x), x) / 200;
  }
  EXPECT_NEAR(means, 0.37, 0.02);
  EXPECT_NEAR(quarters, 0.62, 0.03);
}

TEST(TwoMeans, OrderDoesNotMatter) {
  std::mt19937 random(2);
  std::vector<float> x(128);
  for (float& each : x) {
    const auto bits = static_cast<uint16_t>(random() % 0x7C00 | (random() % 2 << 15));
    each = ToFloat(Half{bits});
  }
  const GroupParams params = FitTwoMeans(x);
  std::sort(x.begin(), x.end());
  EXPECT_EQ(FitTwoMeans(x).scale, params.scale);
  EXPECT_EQ(FitTwoMeans(x).zero, params.zero);
}

TEST(TwoMeans, OfAConstantGroupAreOne) {
  for (const float value : {-3.25F, -0.0F, 65504.0F}) {
    const GroupParams params = FitTwoMeans(std::vector<float>(32, value));
    EXPECT_EQ(params.scale.bits, 0);
    EXPECT_EQ(ToFloat(params.zero), value);
    EXPECT_NE(params.zero.bits, 0x8000);
  }
}

}  // namespace
}  // namespace kvant::quant
