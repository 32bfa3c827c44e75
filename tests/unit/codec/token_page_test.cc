#include "kvant/codec/token_page.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/token_rows.h"

namespace kvant::codec {
namespace {

using Rows = test::TokenRowBuffer;

constexpr uint32_t kHeadDims[] = {32, 40, 64, 80, 96, 100, 128, 256};

// Any bytes are codes, except that nibbles beyond the head dimension are 0.
Rows RandomRows(TokenCodec codec, uint32_t head_dim, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Rows rows(codec, head_dim, count);
  for (uint8_t& code : rows.codes) {
    code = static_cast<uint8_t>(random());
  }
  const size_t row_bytes = RowCodeBytes(codec, head_dim);
  if (CodeBits(codec) == 4 && head_dim % 8 != 0) {
    for (size_t i = 0; i < rows.codes.size(); ++i) {
      const bool in_last_group = i % row_bytes >= row_bytes - 4;
      rows.codes[i] = static_cast<uint8_t>(rows.codes[i] & (in_last_group ? 0x0F : 0xFF));
    }
  }
  for (Half& scale : rows.scales) {
    scale.bits = static_cast<uint16_t>(random());
  }
  for (Half& zero : rows.zeros) {
    zero.bits = static_cast<uint16_t>(random());
  }
  return rows;
}

template <typename Body>
void ForEveryFormat(const Body& body) {
  for (const TokenCodec codec : test::kTokenCodecs) {
    for (const uint32_t head_dim : kHeadDims) {
      SCOPED_TRACE(std::string(TokenCodecName(codec)) + " d=" + std::to_string(head_dim));
      body(codec, head_dim);
    }
  }
}

TEST(TokenPageTest, PartsAreAlignedAndDoNotOverlap) {
  ForEveryFormat([](TokenCodec codec, uint32_t head_dim) {
    for (const uint32_t capacity : {16U, 48U, 128U, 1024U}) {
      const TokenPageLayout layout = TokenPageLayout::Make(codec, head_dim, capacity);
      EXPECT_EQ(layout.value_channels % 16, 0U);
      EXPECT_GE(layout.value_channels, head_dim);
      EXPECT_LT(layout.value_channels, head_dim + 16);
      const size_t params = 2 * size_t{capacity};
      size_t end = RowCodeBytes(codec, head_dim) * capacity;
      const auto expect_part = [&](size_t begin, size_t bytes) {
        EXPECT_GE(begin, end);
        EXPECT_LT(begin, end + 64);
        EXPECT_EQ(begin % 64, 0U);
        end = begin + bytes;
      };
      expect_part(layout.values, size_t{layout.value_channels} * capacity * static_cast<size_t>(CodeBits(codec)) / 8);
      expect_part(layout.key_scales, HasScale(codec) ? params : 0);
      expect_part(layout.key_zeros, HasZero(codec) ? params : 0);
      expect_part(layout.value_scales, HasScale(codec) ? params : 0);
      expect_part(layout.value_zeros, HasZero(codec) ? params : 0);
      expect_part(layout.record_bytes, 0);
    }
  });
}

TEST(TokenPageTest, SizesOfTheDefaultModelsPages) {
  EXPECT_EQ(TokenPageLayout::Make(TokenCodec::kFp16, 64, 128).record_bytes, 128U * 256U);
  EXPECT_EQ(TokenPageLayout::Make(TokenCodec::kInt8, 64, 128).record_bytes, 128U * 132U);
  EXPECT_EQ(TokenPageLayout::Make(TokenCodec::kInt4, 64, 128).record_bytes, 128U * 68U);
  EXPECT_EQ(TokenPageLayout::Make(TokenCodec::kInt4Affine, 64, 128).record_bytes, 128U * 72U);
}

TEST(TokenPageTest, StoreThenLoadGivesTheSameRows) {
  ForEveryFormat([](TokenCodec codec, uint32_t head_dim) {
    const TokenPageLayout layout = TokenPageLayout::Make(codec, head_dim, 128);
    for (const uint32_t count : {1U, 2U, 15U, 16U, 17U, 31U, 127U, 128U}) {
      for (const uint32_t first : {0U, 1U, 128U - count}) {
        if (first + count > 128) {
          continue;
        }
        std::vector<std::byte> record(layout.record_bytes);
        const Rows keys = RandomRows(codec, head_dim, count, count);
        const Rows values = RandomRows(codec, head_dim, count, count + 1);
        StoreRowsRef(layout, record.data(), first, count, keys.view(), values.view());
        Rows got_keys(codec, head_dim, count);
        Rows got_values(codec, head_dim, count);
        LoadRowsRef(layout, record.data(), first, count, got_keys.mutable_view(), got_values.mutable_view());
        EXPECT_EQ(got_keys, keys);
        EXPECT_EQ(got_values, values);
      }
    }
  });
}

// Rows stored one by one, in any cut, make the same record as all at once: no slot touches another.
TEST(TokenPageTest, ARecordDoesNotDependOnHowItWasFilled) {
  ForEveryFormat([](TokenCodec codec, uint32_t head_dim) {
    const TokenPageLayout layout = TokenPageLayout::Make(codec, head_dim, 48);
    const Rows keys = RandomRows(codec, head_dim, 48, 1);
    const Rows values = RandomRows(codec, head_dim, 48, 2);
    std::vector<std::byte> whole(layout.record_bytes);
    StoreRowsRef(layout, whole.data(), 0, 48, keys.view(), values.view());
    const size_t row_bytes = RowCodeBytes(codec, head_dim);
    const auto from = [&](const Rows& rows, uint32_t first, uint32_t count) {
      ConstTokenRows part{std::span(rows.codes).subspan(first * row_bytes, count * row_bytes), {}, {}};
      if (HasScale(codec)) {
        part.scales = std::span(rows.scales).subspan(first, count);
      }
      if (HasZero(codec)) {
        part.zeros = std::span(rows.zeros).subspan(first, count);
      }
      return part;
    };
    std::vector<std::byte> pieces(layout.record_bytes);
    uint32_t first = 0;
    for (const uint32_t count : {1U, 6U, 9U, 13U, 19U}) {
      StoreRowsRef(layout, pieces.data(), first, count, from(keys, first, count), from(values, first, count));
      first += count;
    }
    EXPECT_EQ(first, 48U);
    EXPECT_EQ(pieces, whole);
  });
}

uint8_t ByteAt(const std::vector<std::byte>& record, size_t offset) { return static_cast<uint8_t>(record[offset]); }

// The formulas of token_page.h, one element at a time.
TEST(TokenPageTest, ElementsLieWhereTheFormatSays) {
  constexpr uint32_t kTokens = 37;
  for (const uint32_t head_dim : {40U, 100U}) {
    for (const TokenCodec codec : test::kTokenCodecs) {
      const TokenPageLayout layout = TokenPageLayout::Make(codec, head_dim, 48);
      const Rows keys = RandomRows(codec, head_dim, kTokens, 3);
      const Rows values = RandomRows(codec, head_dim, kTokens, 4);
      std::vector<std::byte> record(layout.record_bytes);
      StoreRowsRef(layout, record.data(), 0, kTokens, keys.view(), values.view());
      const size_t row_bytes = RowCodeBytes(codec, head_dim);
      for (uint32_t t = 0; t < kTokens; ++t) {
        const size_t tile = t / 16 * row_bytes * 16;
        for (size_t i = 0; i < row_bytes; ++i) {
          const size_t unit_bytes = codec == TokenCodec::kFp16 ? 2 : 4;
          const size_t at = tile + (i / unit_bytes * 16 + t % 16) * unit_bytes + i % unit_bytes;
          EXPECT_EQ(ByteAt(record, at), keys.codes[t * row_bytes + i]);
        }
        for (uint32_t c = 0; c < head_dim; ++c) {
          const uint8_t* row = values.codes.data() + t * row_bytes;
          if (codec == TokenCodec::kFp16) {
            const size_t at = layout.values + (size_t{t} * layout.value_channels + c) * 2;
            EXPECT_EQ(std::memcmp(record.data() + at, row + 2 * c, 2), 0);
          } else if (codec == TokenCodec::kInt8) {
            const size_t at = layout.values + (size_t{t / 4} * layout.value_channels + c) * 4 + t % 4;
            EXPECT_EQ(ByteAt(record, at), row[c]);
          } else {
            const size_t at = layout.values + (size_t{t / 8} * layout.value_channels + c) * 4 + t % 4;
            const uint8_t stored = t % 8 < 4 ? ByteAt(record, at) & 0xF : ByteAt(record, at) >> 4;
            const uint8_t byte = row[c / 8 * 4 + c % 4];
            EXPECT_EQ(stored, c % 8 < 4 ? byte & 0xF : byte >> 4);
          }
        }
      }
    }
  }
}

TEST(TokenPageTest, PaddingStaysZero) {
  ForEveryFormat([](TokenCodec codec, uint32_t head_dim) {
    const TokenPageLayout layout = TokenPageLayout::Make(codec, head_dim, 16);
    std::vector<std::byte> record(layout.record_bytes);
    const Rows rows = RandomRows(codec, head_dim, 16, 5);
    StoreRowsRef(layout, record.data(), 0, 16, rows.view(), rows.view());
    const size_t step_tokens = codec == TokenCodec::kFp16 ? 1 : codec == TokenCodec::kInt8 ? 4 : 8;
    const size_t channel_bytes = codec == TokenCodec::kFp16 ? 2 : 4;
    for (size_t step = 0; step < 16 / step_tokens; ++step) {
      for (size_t c = head_dim; c < layout.value_channels; ++c) {
        for (size_t i = 0; i < channel_bytes; ++i) {
          EXPECT_EQ(ByteAt(record, layout.values + (step * layout.value_channels + c) * channel_bytes + i), 0);
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvant::codec
