#include "kvant/kernels/cuda/device_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kvant::kernels::cuda {
namespace {

using codec::TokenCodec;

constexpr TokenCodec kCodecs[] = {TokenCodec::kFp16, TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine};
constexpr uint32_t kHeadDims[] = {64, 128, 256};

struct Rows {
  std::vector<uint8_t> codes;
  std::vector<Half> scales;
  std::vector<Half> zeros;
  codec::ConstTokenRows Const() const { return {codes, scales, zeros}; }
  codec::TokenRows Mutable() { return {codes, scales, zeros}; }
  friend bool operator==(const Rows&, const Rows&) = default;
};

Rows RandomRows(TokenCodec codec, uint32_t head_dim, uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Rows rows{std::vector<uint8_t>(count * codec::RowCodeBytes(codec, head_dim)),
            std::vector<Half>(codec::HasScale(codec) ? count : 0),
            std::vector<Half>(codec::HasZero(codec) ? count : 0)};
  for (uint8_t& byte : rows.codes) byte = static_cast<uint8_t>(random());
  for (Half& half : rows.scales) half.bits = static_cast<uint16_t>(random());
  for (Half& half : rows.zeros) half.bits = static_cast<uint16_t>(random());
  return rows;
}

TEST(TokenTiles, RowsComeBackAndNeighboursStay) {
  for (const TokenCodec codec : kCodecs) {
    for (const uint32_t d : kHeadDims) {
      const Rows keys = RandomRows(codec, d, 48, 1);
      const Rows values = RandomRows(codec, d, 48, 2);
      std::vector<std::byte> tiles(3 * TokenTileBytes(codec, d), std::byte{0});
      StoreTokenTilesRef(codec, d, tiles, 0, 48, keys.Const(), values.Const());
      const std::vector<std::byte> before = tiles;
      // The same tokens again, a part of them: nothing else may move.
      const Rows few_keys = RandomRows(codec, d, 5, 3);
      const Rows few_values = RandomRows(codec, d, 5, 4);
      StoreTokenTilesRef(codec, d, tiles, 13, 5, few_keys.Const(), few_values.Const());
      Rows read_keys = RandomRows(codec, d, 5, 5);
      Rows read_values = RandomRows(codec, d, 5, 6);
      LoadTokenTilesRef(codec, d, tiles, 13, 5, read_keys.Mutable(), read_values.Mutable());
      EXPECT_EQ(read_keys, few_keys);
      EXPECT_EQ(read_values, few_values);
      Rows old_keys = RandomRows(codec, d, 5, 7);
      Rows old_values = RandomRows(codec, d, 5, 8);
      LoadTokenTilesRef(codec, d, before, 13, 5, old_keys.Mutable(), old_values.Mutable());
      StoreTokenTilesRef(codec, d, tiles, 13, 5, old_keys.Const(), old_values.Const());
      EXPECT_EQ(tiles, before) << codec::TokenCodecName(codec) << " " << d;
    }
  }
}

TEST(TokenTiles, EveryBitOfATileHasOneOwner) {
  for (const TokenCodec codec : kCodecs) {
    for (const uint32_t d : kHeadDims) {
      for (const bool is_key : {true, false}) {
        std::set<uint32_t> bits;
        for (uint32_t token = 0; token < kTileTokens; ++token) {
          for (uint32_t channel = 0; channel < d; ++channel) {
            const CodePlace place = PlaceOfTokenCode(codec, is_key, token, channel);
            EXPECT_TRUE(bits.insert(place.word * 32 + place.bit).second);
            EXPECT_LT(place.word * 4, TokenTileCodeBytes(codec, d));
          }
        }
      }
    }
  }
}

codec::WidthMap RandomMap(uint32_t head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  codec::WidthMap map{seed % 2 == 0 ? codec::PairLayout::kHalfSplit : codec::PairLayout::kInterleaved,
                      std::vector<uint8_t>(head_dim / 2)};
  for (uint8_t& width : map.widths) width = static_cast<uint8_t>(1 + random() % 4);
  return map;
}

codec::PairPage RandomPage(const codec::PairFormat& format, const codec::WidthMap& map, uint32_t seed) {
  std::mt19937 random(seed);
  const codec::PairPageLayout layout = codec::PairPageLayout::Make(format, map);
  std::vector<std::byte> bytes(layout.total_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return codec::ParsePairPage(format, map, bytes);
}

TEST(PairRecord, IsABijectionOfTheCodecsPage) {
  for (const uint32_t d : kHeadDims) {
    for (const uint32_t value_bits : {2U, 3U, 4U}) {
      for (uint32_t seed = 0; seed < 6; ++seed) {
        const codec::PairFormat format{d, kPairPageTokens, value_bits, seed % 3 == 0 ? d / 2 : d};
        const codec::WidthMap map = RandomMap(d, seed);
        const Result<PairDeviceLayout> layout = PairDeviceLayout::Make(format, map);
        ASSERT_TRUE(layout.ok()) << layout.status().message();
        const codec::PairPage page = RandomPage(format, map, seed + 50);
        std::vector<std::byte> record(layout->record_bytes(), std::byte{0xEE});
        StorePairRecordRef(*layout, page, record);
        EXPECT_EQ(LoadPairRecordRef(*layout, record), page) << d << " " << value_bits << " " << seed;
      }
    }
  }
}

TEST(PairRecord, PnMixTakesTheBytesOfThePaper) {
  codec::WidthMap map{codec::PairLayout::kHalfSplit, std::vector<uint8_t>(64, 1)};
  for (size_t i = 0; i < 64; i += 2) map.widths[i] = 3;
  const Result<PairDeviceLayout> layout = PairDeviceLayout::Make({128, 128, 2, 128}, map);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->record_bytes(), 9216U);
  EXPECT_TRUE(layout->IsHalfThreeOne());
  EXPECT_EQ(codec::PairPageLayout::Make({128, 128, 2, 128}, map).total_bytes, 9216U);
}

TEST(PairRecord, FieldsLieWhereOneShiftReachesThem) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Result<PairDeviceLayout> layout = PairDeviceLayout::Make({128, 128, 2, 128}, RandomMap(128, seed));
    ASSERT_TRUE(layout.ok());
    for (const PairStep& step : layout->steps) {
      const uint32_t end = step.position + 2 * step.width;
      EXPECT_TRUE(end <= 10 || (step.position >= 6 && end <= 16)) << step.position << " " << step.width;
    }
  }
}

TEST(PairRecord, NamesWhatItRefuses) {
  const codec::WidthMap map{codec::PairLayout::kHalfSplit, std::vector<uint8_t>(48, 2)};
  EXPECT_EQ(PairDeviceLayout::Make({96, 128, 2, 96}, map).status().code(), StatusCode::kModelUnsupported);
  const codec::WidthMap wide{codec::PairLayout::kHalfSplit, std::vector<uint8_t>(64, 2)};
  EXPECT_EQ(PairDeviceLayout::Make({128, 64, 2, 128}, wide).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::kernels::cuda
