#include "kvant/quant/mid_rise.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace kvant::quant {
namespace {

struct Fitted {
  float scale;
  float zero;
  std::vector<uint8_t> codes;
  std::vector<float> decoded;
};

Fitted Quantize(int bits, const std::vector<float>& x) {
  const GroupParams params = FitMidRise(bits, x);
  Fitted fitted{ToFloat(params.scale), ToFloat(params.zero), std::vector<uint8_t>(x.size()),
                std::vector<float>(x.size())};
  EncodeMidRise(bits, params, x, fitted.codes);
  DecodeGroup(Rule::kAffine, bits, params, fitted.codes, fitted.decoded);
  return fitted;
}

// methods.md 10.2: 0.5 lies on the border and belongs to the upper cell.
TEST(MidRise, OneBitTakesTheQuarterPoints) {
  const Fitted f = Quantize(1, {-1, -0.5F, 0, 0.25F, 0.5F, 1, 1.5F, 2});
  EXPECT_EQ(f.scale, 1.5F);
  EXPECT_EQ(f.zero, -0.25F);
  EXPECT_EQ(f.codes, (std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(f.decoded, (std::vector<float>{-0.25F, -0.25F, -0.25F, -0.25F, 1.25F, 1.25F, 1.25F, 1.25F}));
}

TEST(MidRise, TwoBitsTakeTheMiddlesOfFourCells) {
  const Fitted f = Quantize(2, {0, 0.9F, 1, 1.9F, 2, 3, 4});
  EXPECT_EQ(f.codes, (std::vector<uint8_t>{0, 0, 1, 1, 2, 3, 3}));
  EXPECT_EQ(f.decoded, (std::vector<float>{0.5F, 0.5F, 1.5F, 1.5F, 2.5F, 3.5F, 3.5F}));
}

TEST(MidRise, AConstantGroupIsItself) {
  const Fitted f = Quantize(3, {2.5F, 2.5F, 2.5F});
  EXPECT_EQ(f.scale, 0.0F);
  EXPECT_EQ(f.decoded, (std::vector<float>{2.5F, 2.5F, 2.5F}));
}

TEST(MidRise, ZerosOfBothSignsAreAConstantGroup) {
  for (const std::vector<float>& x : {std::vector<float>{0.0F, -0.0F}, std::vector<float>{-0.0F, 0.0F}}) {
    const GroupParams params = FitMidRise(2, x);
    EXPECT_EQ(params.scale.bits, 0);
    EXPECT_EQ(params.zero.bits, 0);
    std::vector<uint8_t> codes(2, 9);
    EncodeMidRise(2, params, x, codes);
    EXPECT_EQ(codes, (std::vector<uint8_t>{0, 0}));
  }
}

TEST(MidRise, TheWholeRangeOfFp16IsCut) {
  const Fitted f = Quantize(1, {-65504.0F, 65504.0F});
  EXPECT_EQ(f.codes, (std::vector<uint8_t>{0, 1}));
  EXPECT_NEAR(f.decoded[1], 32752.0F, 32.0F);
}

}  // namespace
}  // namespace kvant::quant
