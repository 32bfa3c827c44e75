#include "kvant/codec/layer_block.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvant::codec {
namespace {

Precision Parse(const char* word) { return ParsePrecision(word).value(); }

TEST(SplitPromptTest, CountsInPositionOrder) {
  constexpr PromptTail kByPosition = PromptTail::kByPosition;
  constexpr PromptTail kAll = PromptTail::kEncodeAll;
  EXPECT_EQ(SplitPrompt(Parse("fp16"), 1000, kAll), (TokenSplit{0, 0, 1000}));
  EXPECT_EQ(SplitPrompt(Parse("int8"), 1000, kByPosition), (TokenSplit{4, 896, 100}));
  EXPECT_EQ(SplitPrompt(Parse("int8"), 1000, kAll), (TokenSplit{4, 996, 0}));
  EXPECT_EQ(SplitPrompt(Parse("int4,residual=32"), 1000, kByPosition), (TokenSplit{4, 992, 4}));
  EXPECT_EQ(SplitPrompt(Parse("int4,residual=inf"), 1000, kByPosition), (TokenSplit{4, 996, 0}));
  EXPECT_EQ(SplitPrompt(Parse("int8,sinks=0"), 1024, kByPosition), (TokenSplit{0, 1024, 0}));
}

TEST(SplitPromptTest, WithoutAMapNothingIsEncoded) {
  for (const PromptTail tail : {PromptTail::kByPosition, PromptTail::kEncodeAll}) {
    EXPECT_EQ(SplitPrompt(Parse("int8"), 4 + 127, tail), (TokenSplit{4, 0, 127}));
    EXPECT_EQ(SplitPrompt(Parse("int8"), 4 + 128, tail), (TokenSplit{4, 128, 0}));
  }
  EXPECT_EQ(SplitPrompt(Parse("int8,eq=off"), 100, PromptTail::kEncodeAll), (TokenSplit{4, 96, 0}));
  EXPECT_EQ(SplitPrompt(Parse("int8,eq=off"), 100, PromptTail::kByPosition), (TokenSplit{4, 0, 96}));
}

TEST(SplitPromptTest, ShortPromptsAreSinks) {
  for (uint32_t num_tokens = 0; num_tokens <= 4; ++num_tokens) {
    EXPECT_EQ(SplitPrompt(Parse("int4"), num_tokens, PromptTail::kEncodeAll), (TokenSplit{num_tokens, 0, 0}));
  }
}

TEST(SplitPromptTest, TotalsAreThePrompt) {
  for (const char* word : {"fp16", "int8", "int4,eq=off", "int8,sinks=17,residual=5", "int4,residual=inf"}) {
    for (uint32_t num_tokens = 0; num_tokens < 600; ++num_tokens) {
      EXPECT_EQ(SplitPrompt(Parse(word), num_tokens, PromptTail::kByPosition).total(), num_tokens);
      EXPECT_EQ(SplitPrompt(Parse(word), num_tokens, PromptTail::kEncodeAll).total(), num_tokens);
    }
  }
}

LayerBlockLayout Layout(TokenCodec codec, bool equalized, uint32_t head_dim, TokenSplit split) {
  return {{30, 3, head_dim}, codec, equalized, split};
}

TEST(LayerBlockTest, SizesByHand) {
  // 3 heads · 2 · (9 tokens · 128 B + 100 tokens · (64 + 2) B)
  EXPECT_EQ(Layout(TokenCodec::kInt8, false, 64, {4, 100, 5}).total_bytes(), 3U * 2U * (9U * 128U + 100U * 66U));
  // and a map of 2 · 3 · 64 halves
  EXPECT_EQ(Layout(TokenCodec::kInt4Affine, true, 64, {4, 100, 5}).total_bytes(),
            768U + 3U * 2U * (9U * 128U + 100U * 36U));
  EXPECT_EQ(Layout(TokenCodec::kInt4, false, 100, {0, 10, 0}).total_bytes(), 3U * 2U * 10U * 54U);
  EXPECT_EQ(Layout(TokenCodec::kFp16, false, 64, {0, 0, 10}).total_bytes(), 3U * 2U * 10U * 128U);
}

TEST(LayerBlockTest, SectionsFollowOneAnotherWithoutGaps) {
  for (const TokenCodec codec : {TokenCodec::kFp16, TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine}) {
    for (const uint32_t head_dim : {32U, 100U, 256U}) {
      const LayerBlockLayout layout = Layout(codec, codec == TokenCodec::kInt4Affine, head_dim, {4, 37, 11});
      std::vector<std::byte> block(layout.total_bytes());
      const std::byte* at = block.data() + layout.map_bytes();
      for (uint32_t kv_head = 0; kv_head < 3; ++kv_head) {
        const LayerBlockHead<std::byte> head = HeadOf(layout, std::span(block), kv_head);
        const LayerBlockTier<std::byte>& tier = head.tiers[static_cast<size_t>(TierOf(codec))];
        for (const std::span<std::byte> section :
             {head.sink_keys, head.sink_values, tier.key_codes, tier.key_scales, tier.key_zeros, tier.value_codes,
              tier.value_scales, tier.value_zeros, head.tail_keys, head.tail_values}) {
          EXPECT_EQ(section.data(), at);
          EXPECT_EQ((section.data() - block.data()) % 2, 0);
          at += section.size();
        }
        EXPECT_EQ(head.sink_keys.size(), 4U * 2U * head_dim);
        EXPECT_EQ(tier.key_codes.size(), 37U * RowCodeBytes(codec, head_dim));
        EXPECT_EQ(tier.value_scales.size(), HasScale(codec) ? 74U : 0U);
        EXPECT_EQ(tier.value_zeros.size(), HasZero(codec) ? 74U : 0U);
        EXPECT_EQ(head.tail_values.size(), 11U * 2U * head_dim);
      }
      EXPECT_EQ(at, block.data() + block.size());
    }
  }
}

TEST(LayerBlockTest, BitsCountEverything) {
  const BitsPerElement exact = BitsOf(Layout(TokenCodec::kFp16, false, 64, {0, 0, 50}));
  EXPECT_DOUBLE_EQ(exact.payload, 16.0);
  EXPECT_DOUBLE_EQ(exact.effective, 16.0);
  const BitsPerElement int8 = BitsOf(Layout(TokenCodec::kInt8, false, 64, {0, 1000, 0}));
  EXPECT_DOUBLE_EQ(int8.payload, 8.0);
  EXPECT_DOUBLE_EQ(int8.effective, 8.25);
  const BitsPerElement mixed = BitsOf(Layout(TokenCodec::kInt4Affine, true, 64, {4, 92, 4}));
  EXPECT_DOUBLE_EQ(mixed.payload, (8 * 16.0 + 92 * 4.0) / 100);
  EXPECT_DOUBLE_EQ(mixed.effective, (8 * 16.0 + 92 * 4.5) / 100 + 8.0 * 768 / (2 * 3 * 64 * 100));
  EXPECT_EQ(BitsOf(Layout(TokenCodec::kInt8, false, 64, {})).effective, 0.0);
}

}  // namespace
}  // namespace kvant::codec
