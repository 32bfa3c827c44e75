#include "kvant/kernels/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>

#include "support/token_rows.h"
#include "unit/kernels/isa_test_name.h"

namespace kvant::kernels {
namespace {

using Rows = test::TokenRowBuffer;
using codec::TokenCodec;
using codec::TokenPageLayout;

constexpr uint32_t kHeadDims[] = {32, 36, 40, 48, 60, 64, 80, 96, 100, 112, 128, 132, 160, 192, 252, 256};
constexpr size_t kCounts[] = {1, 2, 15, 16, 17, 31, 33, 128};

// Rows of every kind in turn: normal, constant, zero, signed zeros, tiny, huge, one outlier, any finite bits.
std::vector<Half> MixedRows(uint32_t head_dim, size_t stride, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> rows(stride * count);
  for (size_t t = 0; t < count; ++t) {
    const size_t kind = (t + seed) % 9;
    for (uint32_t c = 0; c < stride; ++c) {
      Half& x = rows[t * stride + c];
      switch (kind) {
        case 0: x = ToHalf(normal(random)); break;
        case 1: x = ToHalf(-3.25F); break;
        case 2: x = Half{}; break;
        case 3: x = Half{static_cast<uint16_t>(random() % 2 == 0 ? 0x8000 : 0)}; break;
        case 4: x = Half{static_cast<uint16_t>(random() % 40 | (random() % 2 << 15))}; break;
        case 5: x = ToHalf(random() % 2 == 0 ? 65504.0F : -65504.0F); break;
        case 6: x = ToHalf(c == head_dim / 2 ? 900.0F : 0.1F * normal(random)); break;
        case 7: x = ToHalf(std::fabs(normal(random)) + 5.0F); break;
        default: x = Half{static_cast<uint16_t>(random() % 0x7C00 | (random() % 2 << 15))}; break;
      }
    }
  }
  return rows;
}

class RowsIsaTest : public testing::TestWithParam<Isa> {
 protected:
  const RowKernels& kernels_ = RowKernelsOf(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Isas, RowsIsaTest, testing::ValuesIn(AvailableIsas()), IsaTestName);

template <typename Body>
void ForEveryShape(const Body& body) {
  for (const TokenCodec codec : test::kTokenCodecs) {
    for (const uint32_t head_dim : kHeadDims) {
      for (const size_t count : kCounts) {
        SCOPED_TRACE(std::string(codec::TokenCodecName(codec)) + " d=" + std::to_string(head_dim) +
                     " rows=" + std::to_string(count));
        body(codec, head_dim, count);
      }
    }
  }
}

TEST_P(RowsIsaTest, EncodeGivesTheReferenceBytes) {
  ForEveryShape([&](TokenCodec codec, uint32_t head_dim, size_t count) {
    const size_t stride = head_dim + 12;
    const std::vector<Half> src = MixedRows(head_dim, stride, count, head_dim);
    Rows expected(codec, head_dim, count);
    Rows got(codec, head_dim, count);
    codec::EncodeRowsRef(codec, head_dim, src.data(), stride, count, expected.mutable_view());
    kernels_.encode(codec, head_dim, src.data(), stride, count, got.mutable_view());
    EXPECT_EQ(got, expected);
  });
}

TEST_P(RowsIsaTest, DecodeGivesTheReferenceBytes) {
  ForEveryShape([&](TokenCodec codec, uint32_t head_dim, size_t count) {
    const std::vector<Half> src = MixedRows(head_dim, head_dim, count, head_dim + 1);
    Rows rows(codec, head_dim, count);
    codec::EncodeRowsRef(codec, head_dim, src.data(), head_dim, count, rows.mutable_view());
    const size_t stride = head_dim + 4;
    std::vector<Half> expected(stride * count, Half{0x1234});
    std::vector<Half> got = expected;
    codec::DecodeRowsRef(codec, head_dim, rows.view(), count, expected.data(), stride);
    kernels_.decode(codec, head_dim, rows.view(), count, got.data(), stride);
    EXPECT_EQ(got, expected);  // what lies between the rows included
    EXPECT_TRUE(AllFinite(std::span<const Half>(got)));
  });
}

TEST_P(RowsIsaTest, StoreAndLoadGiveTheReferenceBytes) {
  constexpr uint32_t kCapacity = 160;
  for (const TokenCodec codec : test::kTokenCodecs) {
    for (const uint32_t head_dim : kHeadDims) {
      const TokenPageLayout layout = TokenPageLayout::Make(codec, head_dim, kCapacity);
      for (const uint32_t first : {0U, 3U, 16U}) {
        for (const size_t count : kCounts) {
          SCOPED_TRACE(std::string(codec::TokenCodecName(codec)) + " d=" + std::to_string(head_dim) + " slots " +
                       std::to_string(first) + "+" + std::to_string(count));
          Rows keys(codec, head_dim, count);
          Rows values(codec, head_dim, count);
          const std::vector<Half> src = MixedRows(head_dim, head_dim, count, head_dim);
          const std::vector<Half> other = MixedRows(head_dim, head_dim, count, head_dim + 5);
          codec::EncodeRowsRef(codec, head_dim, src.data(), head_dim, count, keys.mutable_view());
          codec::EncodeRowsRef(codec, head_dim, other.data(), head_dim, count, values.mutable_view());
          std::vector<std::byte> expected(layout.record_bytes);
          std::vector<std::byte> got(layout.record_bytes);
          const auto num_tokens = static_cast<uint32_t>(count);
          codec::StoreRowsRef(layout, expected.data(), first, num_tokens, keys.view(), values.view());
          kernels_.store(layout, got.data(), first, num_tokens, keys.view(), values.view());
          ASSERT_EQ(got, expected);
          Rows loaded_keys(codec, head_dim, count);
          Rows loaded_values(codec, head_dim, count);
          kernels_.load(layout, got.data(), first, num_tokens, loaded_keys.mutable_view(),
                        loaded_values.mutable_view());
          EXPECT_EQ(loaded_keys, keys);
          EXPECT_EQ(loaded_values, values);
          Rows keys_alone(codec, head_dim, count);
          kernels_.load(layout, got.data(), first, num_tokens, keys_alone.mutable_view(), {});
          EXPECT_EQ(keys_alone, keys);
        }
      }
    }
  }
}

TEST_P(RowsIsaTest, ToHalfRoundsAsTheScalarOne) {
  std::vector<float> src;
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {  // every finite half, and what lies around the tie above it
    const float low = ToFloat(Half{static_cast<uint16_t>(bits)});
    const float high = bits == 0x7BFF ? 65536.0F : ToFloat(Half{static_cast<uint16_t>(bits + 1)});
    const float tie = 0.5F * (low + high);
    if (tie >= 65520.0F) {
      continue;
    }
    for (const float x : {low, std::nextafter(tie, 0.0F), tie, std::nextafter(tie, 1e6F)}) {
      src.push_back(x);
      src.push_back(-x);
    }
  }
  src.push_back(65519.99F);
  src.push_back(1e-30F);
  std::vector<Half> expected(src.size());
  std::vector<Half> got(src.size());
  ToHalf(src, expected);
  EXPECT_TRUE(kernels_.to_half(src.data(), got.data(), src.size()));
  EXPECT_EQ(got, expected);
}

TEST_P(RowsIsaTest, ToHalfReportsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const size_t count : {1U, 7U, 16U, 33U}) {
    for (size_t at = 0; at < count; ++at) {
      for (const float bad : {std::nanf(""), kInfinity, -kInfinity, 65520.0F, -65520.0F, 1e30F}) {
        std::vector<float> src(count, 1.0F);
        std::vector<Half> dst(count);
        EXPECT_TRUE(kernels_.to_half(src.data(), dst.data(), count));
        src[at] = bad;
        EXPECT_FALSE(kernels_.to_half(src.data(), dst.data(), count)) << bad << " at " << at << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace kvant::kernels
