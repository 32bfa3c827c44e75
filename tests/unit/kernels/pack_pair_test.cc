#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "kvant/kernels/pair_pages.h"
#include "unit/kernels/isa_test_name.h"

namespace kvant::kernels {
namespace {

using codec::PairFormat;
using codec::PairLayout;
using codec::PairRule;
using codec::WidthMap;

// Rows of every kind: normal, constant, signed zeros, tiny, huge, outliers, any finite bits; by channel and by token.
std::vector<Half> MixedRows(uint32_t num_tokens, size_t stride, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> rows(num_tokens * stride);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t kind = seed % 2 == 0 ? i % stride % 11 : i / stride % 11;
    switch (kind) {
      case 0: rows[i] = ToHalf(-3.25F); break;
      case 1: rows[i] = Half{static_cast<uint16_t>(random() % 2 == 0 ? 0x8000 : 0)}; break;
      case 2: rows[i] = Half{static_cast<uint16_t>(random() % 40 | (random() % 2 << 15))}; break;
      case 3: rows[i] = ToHalf(random() % 2 == 0 ? 65504.0F : -65504.0F); break;
      case 4: rows[i] = ToHalf(random() % 64 == 0 ? 900.0F : 0.1F * normal(random)); break;
      case 5: rows[i] = ToHalf(std::fabs(normal(random)) + 5.0F); break;
      case 6: rows[i] = ToHalf(static_cast<float>(random() % 4)); break;  // ties
      case 7: rows[i] = Half{static_cast<uint16_t>(random() % 0x7C00 | (random() % 2 << 15))}; break;
      default: rows[i] = ToHalf(normal(random)); break;
    }
  }
  return rows;
}

void ExpectReferenceBytes(Isa isa, const PairFormat& format, const WidthMap& map, uint32_t seed) {
  const PairPlan plan(format, map);
  const size_t stride = format.head_dim + 16;
  const std::vector<Half> keys = MixedRows(format.page_tokens, stride, seed);
  const std::vector<Half> values = MixedRows(format.page_tokens, stride, seed + 1);
  std::vector<std::byte> expected(plan.layout().total_bytes);
  std::vector<std::byte> got(expected.size() + 1, std::byte{0xEE});
  codec::SerializePairPage(format, map, codec::EncodePairPageRef(format, map, keys.data(), values.data(), stride),
                           expected);
  PackPairPage(isa, plan, keys.data(), values.data(), stride, std::span(got).first(expected.size()));
  EXPECT_EQ(got.back(), std::byte{0xEE});
  got.pop_back();
  EXPECT_EQ(got, expected) << "d=" << format.head_dim << " tokens=" << format.page_tokens << " v=" << format.value_bits
                           << " vg=" << format.value_group << " seed=" << seed;
}

class PackPairTest : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, PackPairTest, testing::ValuesIn(AvailableIsas()), IsaTestName);

TEST_P(PackPairTest, GivesTheReferenceBytes) {
  uint32_t seed = 0;
  for (uint32_t head_dim = 32; head_dim <= 256; head_dim += 16) {
    std::mt19937 random(head_dim);
    for (const PairLayout pairs : {PairLayout::kHalfSplit, PairLayout::kInterleaved}) {
      for (const uint8_t most : {uint8_t{1}, uint8_t{2}, uint8_t{3}, uint8_t{4}}) {
        WidthMap map{pairs, {}};
        for (uint32_t i = 0; i < head_dim / 2; ++i) map.widths.push_back(static_cast<uint8_t>(1 + random() % most));
        for (const PairRule rule : {PairRule::kMinMax, PairRule::kMidRise}) {
          const uint32_t bits = std::vector<uint32_t>{2, 3, 4, 8}[seed / 2 % 4];
          const uint32_t tokens = 32U << seed / 3 % 3;
          const uint32_t group = seed % 5 == 0 ? 16 : head_dim;
          ExpectReferenceBytes(GetParam(), {head_dim, tokens, bits, group, rule, rule}, map, ++seed);
        }
      }
    }
  }
}

TEST_P(PackPairTest, GivesTheReferenceBytesOfOtherPointsForOneBit) {
  for (const codec::OneBitRule one_bit : {codec::OneBitRule::kEndPoints, codec::OneBitRule::kMeans}) {
    WidthMap map{PairLayout::kHalfSplit, std::vector<uint8_t>(32, 1)};
    for (size_t i = 0; i < map.widths.size(); i += 2) map.widths[i] = 3;
    for (uint32_t seed = 0; seed < 4; ++seed) {
      ExpectReferenceBytes(GetParam(), {64, 128, 2, 64, PairRule::kMinMax, PairRule::kMinMax, one_bit}, map, seed);
    }
  }
}

TEST_P(PackPairTest, GivesTheReferenceBytesOfThePapersPages) {
  for (const uint32_t head_dim : {64U, 128U}) {
    WidthMap map{PairLayout::kHalfSplit, std::vector<uint8_t>(head_dim / 2, 1)};
    for (size_t i = 0; i < map.widths.size(); i += 2) map.widths[i] = 3;
    for (uint32_t seed = 0; seed < 12; ++seed) {
      ExpectReferenceBytes(GetParam(), {head_dim, 128, 2, head_dim}, map, seed);
      ExpectReferenceBytes(GetParam(), {head_dim, 128, 4, 32}, map, seed);
    }
  }
}

TEST(RotateValueRows, IsItsOwnInverseAndKeepsLengths) {
  for (const uint32_t head_dim : {32U, 48U, 64U, 96U, 128U, 256U}) {
    std::mt19937 random(head_dim);
    std::normal_distribution<float> normal;
    std::vector<Half> rows(5 * head_dim);
    for (Half& x : rows) x = ToHalf(normal(random));
    std::vector<Half> turned(rows.size());
    RotateValueRows(BestIsa(), head_dim, rows.data(), head_dim, 5, turned.data(), head_dim);
    double before = 0;
    double after = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      before += std::pow(static_cast<double>(ToFloat(rows[i])), 2);
      after += std::pow(static_cast<double>(ToFloat(turned[i])), 2);
    }
    for (const Isa isa : AvailableIsas()) {
      std::vector<Half> same(rows.size());
      RotateValueRows(isa, head_dim, rows.data(), head_dim, 5, same.data(), head_dim);
      EXPECT_EQ(same, turned) << IsaName(isa);
    }
    EXPECT_NEAR(after / before, 1.0, 1e-3);
    EXPECT_NE(rows, turned);
    RotateValueRows(BestIsa(), head_dim, turned.data(), head_dim, 5, turned.data(), head_dim);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_NEAR(ToFloat(turned[i]), ToFloat(rows[i]), 5e-3);
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
