#include "kvant/base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace kvant {
namespace {

constexpr uint16_t kSignBit = 0x8000;
constexpr uint16_t kInfinityBits = 0x7C00;

// What IEEE 754 says a finite half is, computed the long way.
float ValueOf(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((bits & kSignBit) != 0 ? -magnitude : magnitude);
}

TEST(HalfTest, EveryFiniteHalfHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    if ((bits & kInfinityBits) == kInfinityBits) {
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(ToFloat(half)), std::bit_cast<uint32_t>(ValueOf(half.bits))) << bits;
    EXPECT_EQ(ToHalf(ToFloat(half)), half) << bits;
  }
}

TEST(HalfTest, InfinityAndNaNKeepTheirKind) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    if ((bits & kInfinityBits) != kInfinityBits) {
      continue;
    }
    const float value = ToFloat(half);
    if ((bits & 0x3FF) == 0) {
      EXPECT_EQ(value, (bits & kSignBit) != 0 ? -INFINITY : INFINITY);
      EXPECT_EQ(ToHalf(value), half);
    } else {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(ToFloat(ToHalf(value)))) << bits;
    }
  }
}

// Between two neighbours: the middle goes to the even one, and a hair beside it to the nearer one.
TEST(HalfTest, TiesGoToTheEvenNeighbour) {
  for (uint16_t low = 0; low < 0x7BFF; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = 0.5F * (ValueOf(low) + ValueOf(high));
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0F, -1.0F}) {
      const uint16_t sign_bit = sign < 0 ? kSignBit : uint16_t{0};
      EXPECT_EQ(ToHalf(sign * middle).bits, sign_bit | even) << low;
      EXPECT_EQ(ToHalf(sign * std::nextafter(middle, 0.0F)).bits, sign_bit | low) << low;
      EXPECT_EQ(ToHalf(sign * std::nextafter(middle, INFINITY)).bits, sign_bit | high) << low;
    }
  }
}

TEST(HalfTest, TheRangeEndsWhereRoundingReaches65536) {
  EXPECT_EQ(ToHalf(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(ToHalf(std::nextafter(65520.0F, 0.0F)).bits, 0x7BFF);
  EXPECT_EQ(ToHalf(65520.0F).bits, kInfinityBits);
  EXPECT_EQ(ToHalf(-65520.0F).bits, kSignBit | kInfinityBits);
  EXPECT_EQ(ToHalf(std::numeric_limits<float>::max()).bits, kInfinityBits);
  EXPECT_EQ(ToHalf(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(ToHalf(-std::numeric_limits<float>::denorm_min()).bits, kSignBit);
}

TEST(HalfTest, SpansConvertElementByElement) {
  const std::vector<float> src = {0.0F, -1.5F, 0.1F, 70000.0F};
  std::vector<Half> halves(src.size());
  ToHalf(src, halves);
  std::vector<float> back(src.size());
  ToFloat(halves, back);
  for (size_t i = 0; i < src.size(); ++i) {
    EXPECT_EQ(halves[i], ToHalf(src[i]));
    EXPECT_EQ(back[i], ToFloat(halves[i]));
  }
}

TEST(HalfTest, AllFiniteFindsOneBadValueAnywhere) {
  for (size_t at = 0; at < 40; ++at) {
    std::vector<float> floats(40, -3.0F);
    std::vector<Half> halves(40, Half{0xFBFF});
    EXPECT_TRUE(AllFinite(std::span<const float>(floats)));
    EXPECT_TRUE(AllFinite(std::span<const Half>(halves)));
    for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
      floats[at] = bad;
      EXPECT_FALSE(AllFinite(std::span<const float>(floats)));
      halves[at] = ToHalf(bad);
      EXPECT_FALSE(AllFinite(std::span<const Half>(halves)));
    }
  }
}

}  // namespace
}  // namespace kvant
