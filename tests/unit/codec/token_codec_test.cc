#include "kvant/codec/token_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/token_rows.h"

namespace kvant::codec {
namespace {

using Rows = test::TokenRowBuffer;

constexpr uint32_t kHeadDims[] = {32, 40, 64, 80, 96, 100, 128, 256};

std::vector<Half> Halves(const std::vector<float>& values) {
  std::vector<Half> halves(values.size());
  ToHalf(values, halves);
  return halves;
}

std::vector<float> RoundTrip(TokenCodec codec, const std::vector<float>& row) {
  const auto head_dim = static_cast<uint32_t>(row.size());
  Rows rows(codec, head_dim, 1);
  EncodeRowsRef(codec, head_dim, Halves(row).data(), head_dim, 1, rows.mutable_view());
  std::vector<Half> decoded(head_dim);
  DecodeRowsRef(codec, head_dim, rows.view(), 1, decoded.data(), head_dim);
  std::vector<float> back(head_dim);
  ToFloat(decoded, back);
  return back;
}

TEST(TokenCodecTest, NumbersAndNamesAreStable) {
  EXPECT_EQ(static_cast<int>(TokenCodec::kFp16), 0);
  EXPECT_EQ(static_cast<int>(TokenCodec::kInt8), 1);
  EXPECT_EQ(static_cast<int>(TokenCodec::kInt4), 2);
  EXPECT_EQ(static_cast<int>(TokenCodec::kInt4Affine), 3);
  EXPECT_EQ(TokenCodecName(TokenCodec::kInt4Affine), "int4-affine");
}

TEST(TokenCodecTest, HeadDimsAreMultiplesOf4From32To256) {
  for (uint32_t head_dim = 0; head_dim <= 300; ++head_dim) {
    const bool allowed = head_dim >= 32 && head_dim <= 256 && head_dim % 4 == 0;
    const Status status = CheckHeadDim(head_dim);
    EXPECT_EQ(status.ok(), allowed) << head_dim;
    if (!allowed) {
      EXPECT_EQ(status.code(), StatusCode::kModelUnsupported);
      EXPECT_NE(status.message().find(std::to_string(head_dim)), std::string::npos);
    }
  }
}

TEST(TokenCodecTest, RowSizes) {
  EXPECT_EQ(RowCodeBytes(TokenCodec::kFp16, 100), 200U);
  EXPECT_EQ(RowCodeBytes(TokenCodec::kInt8, 100), 100U);
  EXPECT_EQ(RowCodeBytes(TokenCodec::kInt4, 100), 52U);
  EXPECT_EQ(RowCodeBytes(TokenCodec::kInt4Affine, 96), 48U);
  EXPECT_EQ(RowBytes(TokenCodec::kFp16, 64), 128U);
  EXPECT_EQ(RowBytes(TokenCodec::kInt8, 64), 66U);
  EXPECT_EQ(RowBytes(TokenCodec::kInt4, 64), 34U);
  EXPECT_EQ(RowBytes(TokenCodec::kInt4Affine, 64), 36U);
}

// Channel c holds level c % 8 - 3 and one channel the 7 that makes the scale 1: every nibble is known.
TEST(TokenCodecTest, NibblesLieAsTheFormatSays) {
  constexpr uint32_t kHeadDim = 36;  // the last group is half full
  std::vector<float> row(kHeadDim);
  for (uint32_t c = 0; c < kHeadDim; ++c) {
    row[c] = static_cast<float>(c % 8) - 3.0F;
  }
  row[5] = 7.0F;
  Rows rows(TokenCodec::kInt4, kHeadDim, 1);
  EncodeRowsRef(TokenCodec::kInt4, kHeadDim, Halves(row).data(), kHeadDim, 1, rows.mutable_view());
  EXPECT_EQ(rows.scales[0], ToHalf(1.0F));
  ASSERT_EQ(rows.codes.size(), 20U);
  for (uint32_t c = 0; c < kHeadDim; ++c) {
    const uint8_t byte = rows.codes[c / 8 * 4 + c % 4];
    const int code = c % 8 < 4 ? byte & 0xF : byte >> 4;
    EXPECT_EQ(code - 8, static_cast<int>(row[c])) << c;
  }
  for (size_t i = 16; i < 20; ++i) {
    EXPECT_EQ(rows.codes[i] >> 4, 0) << "padding";
  }
}

TEST(TokenCodecTest, Fp16RowsAreTheBitsThemselves) {
  std::vector<Half> row(64);
  std::mt19937 random(2);
  for (Half& half : row) {
    half.bits = static_cast<uint16_t>(random() % 0x7C00);
  }
  Rows rows(TokenCodec::kFp16, 64, 1);
  EncodeRowsRef(TokenCodec::kFp16, 64, row.data(), 64, 1, rows.mutable_view());
  std::vector<Half> decoded(64);
  DecodeRowsRef(TokenCodec::kFp16, 64, rows.view(), 1, decoded.data(), 64);
  EXPECT_EQ(decoded, row);
}

TEST(TokenCodecTest, StridesSkipWhatLiesBetweenRows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const TokenCodec codec : test::kTokenCodecs) {
    std::vector<Half> wide(3 * 50);
    for (Half& half : wide) {
      half = ToHalf(normal(random));
    }
    Rows strided(codec, 40, 3);
    EncodeRowsRef(codec, 40, wide.data(), 50, 3, strided.mutable_view());
    for (size_t t = 0; t < 3; ++t) {
      Rows one(codec, 40, 1);
      EncodeRowsRef(codec, 40, wide.data() + t * 50, 40, 1, one.mutable_view());
      const size_t row_bytes = RowCodeBytes(codec, 40);
      EXPECT_TRUE(std::ranges::equal(one.codes, std::span(strided.codes).subspan(t * row_bytes, row_bytes)));
    }
    std::vector<Half> decoded(3 * 50, Half{0x7777});
    DecodeRowsRef(codec, 40, strided.view(), 3, decoded.data(), 50);
    EXPECT_EQ(decoded[45], Half{0x7777});
  }
}

TEST(TokenCodecTest, ErrorsStayWithinHalfAStep) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const TokenCodec codec : {TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine}) {
    for (const uint32_t head_dim : kHeadDims) {
      std::vector<float> row(head_dim);
      for (float& x : row) {
        x = ToFloat(ToHalf(4.0F * normal(random)));
      }
      const auto [low, high] = std::minmax_element(row.begin(), row.end());
      const float largest = std::max(std::fabs(*low), std::fabs(*high));
      const float step = codec == TokenCodec::kInt8   ? largest / 127
                         : codec == TokenCodec::kInt4 ? largest / 7
                                                      : (*high - *low) / 15;
      const std::vector<float> back = RoundTrip(codec, row);
      for (uint32_t c = 0; c < head_dim; ++c) {
        EXPECT_LE(std::fabs(row[c] - back[c]), 0.5F * step + 0x1p-10F * largest) << TokenCodecName(codec);
      }
    }
  }
}

TEST(TokenCodecTest, EdgeRowsStayFinite) {
  for (const TokenCodec codec : test::kTokenCodecs) {
    EXPECT_EQ(RoundTrip(codec, std::vector<float>(64, 0.0F)), std::vector<float>(64, 0.0F));
    std::vector<float> huge(64, 65504.0F);
    for (size_t i = 0; i < huge.size(); i += 2) {
      huge[i] = -65504.0F;
    }
    const std::vector<float> back = RoundTrip(codec, huge);
    for (size_t i = 0; i < huge.size(); ++i) {
      EXPECT_NEAR(back[i], huge[i], 70.0F) << TokenCodecName(codec);  // and not infinite
    }
    std::vector<float> tiny(64, 0.0F);
    tiny[3] = 0x1p-24F;
    tiny[4] = -0x1p-24F;
    for (const float x : RoundTrip(codec, tiny)) {
      EXPECT_LE(std::fabs(x), 0x1p-23F);
    }
  }
  EXPECT_EQ(RoundTrip(TokenCodec::kInt4Affine, std::vector<float>(64, -7.5F)), std::vector<float>(64, -7.5F));
}

}  // namespace
}  // namespace kvant::codec
