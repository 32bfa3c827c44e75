#include "kvant/quant/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvant::quant {
namespace {

struct Fitted {
  GroupParams params;
  std::vector<uint8_t> codes;
  std::vector<float> decoded;
};

Fitted Quantize(Rule rule, int bits, const std::vector<float>& x) {
  Fitted fitted{FitGroup(rule, bits, x), std::vector<uint8_t>(x.size()), std::vector<float>(x.size())};
  EncodeGroup(rule, bits, fitted.params, x, fitted.codes);
  DecodeGroup(rule, bits, fitted.params, fitted.codes, fitted.decoded);
  return fitted;
}

struct Kind {
  Rule rule;
  int bits;
};
constexpr Kind kKinds[] = {{Rule::kSymmetric, 8}, {Rule::kSymmetric, 4}, {Rule::kAffine, 8}, {Rule::kAffine, 4}};

float LargestMagnitude(const std::vector<float>& x) {
  float largest = 0;
  for (const float value : x) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// methods.md 10.2, "SpectrumKV int4": levels 7, -7, 4, -4, stored with the bias of 8.
TEST(GroupTest, SymmetricInt4GivesThePapersCodes) {
  const Fitted fitted = Quantize(Rule::kSymmetric, 4, {0.7F, -0.7F, 0.44F, -0.36F});
  EXPECT_EQ(fitted.params.scale, ToHalf(0.1F));
  EXPECT_EQ(fitted.params.zero, Half{});
  EXPECT_EQ(fitted.codes, (std::vector<uint8_t>{15, 1, 12, 4}));
}

TEST(GroupTest, AffineInt4GivesCodesFromTheStoredScale) {
  const Fitted fitted = Quantize(Rule::kAffine, 4, {-1.0F, -0.5F, 0.0F, 0.25F, 0.5F, 1.0F, 1.5F, 2.0F});
  EXPECT_EQ(fitted.params.scale.bits, 0x3266);  // 0.199951: just below 0.2, so that 2.5 steps are more than 2.5
  EXPECT_EQ(fitted.params.zero, ToHalf(-1.0F));
  EXPECT_EQ(fitted.codes, (std::vector<uint8_t>{0, 3, 5, 6, 8, 10, 13, 15}));
}

TEST(GroupTest, CodesRoundHalfToEven) {
  const Fitted fitted = Quantize(Rule::kSymmetric, 8, {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F});
  EXPECT_EQ(fitted.params.scale, ToHalf(1.0F));
  EXPECT_EQ(fitted.codes, (std::vector<uint8_t>{255, 128, 130, 130, 128, 126, 126}));
  const Fitted affine = Quantize(Rule::kAffine, 4, {0.0F, 0.5F, 1.5F, 2.5F, 15.0F});
  EXPECT_EQ(affine.codes, (std::vector<uint8_t>{0, 0, 2, 2, 15}));
}

TEST(GroupTest, CodesBeyondTheRangeAreClamped) {
  const std::vector<float> x = {-1000.0F, 1000.0F};
  std::vector<uint8_t> codes(2);
  EncodeGroup(Rule::kSymmetric, 8, {ToHalf(1.0F), Half{}}, x, codes);
  EXPECT_EQ(codes, (std::vector<uint8_t>{1, 255}));
  EncodeGroup(Rule::kSymmetric, 4, {ToHalf(1.0F), Half{}}, x, codes);
  EXPECT_EQ(codes, (std::vector<uint8_t>{1, 15}));
  EncodeGroup(Rule::kAffine, 4, {ToHalf(1.0F), Half{}}, x, codes);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 15}));
}

TEST(GroupTest, AllZeroStaysZero) {
  for (const auto [rule, bits] : kKinds) {
    const Fitted fitted = Quantize(rule, bits, std::vector<float>(32, 0.0F));
    EXPECT_EQ(fitted.params.scale, Half{});
    EXPECT_EQ(fitted.params.zero, Half{});
    EXPECT_EQ(fitted.decoded, std::vector<float>(32, 0.0F));
  }
}

TEST(GroupTest, SignedZerosMakeNoNegativeScaleOrZero) {
  for (const auto [rule, bits] : kKinds) {
    for (const std::vector<float>& x : {std::vector{0.0F, -0.0F}, std::vector{-0.0F, 0.0F}, std::vector{-0.0F, -0.0F},
                                        std::vector{-0.0F, 3.0F}, std::vector{0.0F, -0.0F, 3.0F}}) {
      const Fitted fitted = Quantize(rule, bits, x);
      EXPECT_EQ(fitted.params.scale.bits & 0x8000, 0);
      EXPECT_NE(fitted.params.zero.bits, 0x8000);
      EXPECT_NEAR(fitted.decoded[0], 0.0F, 1e-3F);
    }
  }
}

TEST(GroupTest, ConstantGroupsAreExactUnderAffine) {
  for (const float value : {1.0F, -3.25F, 65504.0F, -65504.0F, 0x1p-24F, -0x1p-14F}) {
    for (const int bits : {4, 8}) {
      const Fitted fitted = Quantize(Rule::kAffine, bits, std::vector<float>(40, value));
      EXPECT_EQ(fitted.params.scale, Half{});
      EXPECT_EQ(fitted.decoded, std::vector<float>(40, value));
    }
  }
}

TEST(GroupTest, AScaleTooSmallForFp16DecodesToTheZero) {
  const std::vector<float> x = {0x1p-24F, -0x1p-24F, 0.0F};
  EXPECT_EQ(Quantize(Rule::kSymmetric, 8, x).params.scale, Half{});
  EXPECT_EQ(Quantize(Rule::kSymmetric, 8, x).decoded, std::vector<float>(3, 0.0F));
  EXPECT_EQ(Quantize(Rule::kAffine, 8, x).decoded, std::vector<float>(3, -0x1p-24F));
}

// The bound of group.h, over magnitudes from the subnormal to the largest.
TEST(GroupTest, ErrorsStayWithinTheBound) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto [rule, bits] : kKinds) {
    for (int exponent = -24; exponent <= 15; ++exponent) {
      for (const float shift : {0.0F, 3.0F}) {
        std::vector<float> x(64);
        for (float& value : x) {
          const float raw = std::ldexp(normal(random) + shift, exponent);
          value = std::clamp(raw, -kHalfMax, kHalfMax);
        }
        const Fitted fitted = Quantize(rule, bits, x);
        const float scale = ToFloat(fitted.params.scale);
        const float subnormal = scale < 0x1p-14F ? static_cast<float>(AffineMax(bits)) * 0x1p-25F : 0.0F;
        const float bound = 0.5F * scale * 1.00001F + 0x1p-11F * LargestMagnitude(x) + subnormal;
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_LE(std::fabs(x[i] - fitted.decoded[i]), bound) << bits << ' ' << exponent;
        }
      }
    }
  }
}

TEST(GroupTest, DecodedLevelsEncodeToThemselves) {
  for (const auto [rule, bits] : kKinds) {
    const GroupParams params{ToHalf(0.037F), rule == Rule::kAffine ? ToHalf(-1.5F) : Half{}};
    const int first = rule == Rule::kSymmetric ? 1 : 0;
    for (int code = first; code <= AffineMax(bits); ++code) {
      const std::vector<uint8_t> codes = {static_cast<uint8_t>(code)};
      std::vector<float> x(1);
      DecodeGroup(rule, bits, params, codes, x);
      std::vector<uint8_t> again(1);
      EncodeGroup(rule, bits, params, x, again);
      EXPECT_EQ(again, codes);
    }
  }
}

}  // namespace
}  // namespace kvant::quant
