#include "kvant/wire/layer_frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "kvant/base/hash.h"

namespace kvant::wire {
namespace {

using codec::LayerBlockLayout;
using codec::TokenCodec;

const LayerBlockLayout kLayout{{30, 3, 64}, TokenCodec::kInt8, true, {4, 200, 7}};

Buffer FrameOf(uint32_t layer, const LayerBlockLayout& layout) {
  BlockFrame frame = AllocateLayer(11, layer, layout).value();
  std::memset(frame.block().data(), 0x5A, frame.block().size());
  return std::move(frame).Seal();
}

TEST(LayerFrameTest, TheBlockIsWrittenWhereItIsReadFrom) {
  BlockFrame frame = AllocateLayer(11, 29, kLayout).value();
  ASSERT_EQ(frame.block().size(), kLayout.total_bytes());
  const std::byte* written = frame.block().data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(written) % Buffer::kAlignment, 0U);
  std::memset(frame.block().data(), 0x5A, frame.block().size());
  const Buffer sealed = std::move(frame).Seal();
  const FrameView opened = OpenFrame(sealed.bytes()).value();
  EXPECT_EQ(opened.header.session, 11U);
  const LayerView view = DecodeLayer(opened).value();
  EXPECT_EQ(view.block.data(), written);
  EXPECT_EQ(view.block.size(), kLayout.total_bytes());
  EXPECT_EQ(view.layer, 29U);
  EXPECT_EQ(view.layout.shape, kLayout.shape);
  EXPECT_EQ(view.layout.codec, kLayout.codec);
  EXPECT_TRUE(view.layout.equalized);
  EXPECT_EQ(view.layout.split, kLayout.split);
}

TEST(LayerFrameTest, WireBytesStayWithinTheBudgetOfThePaper) {
  const struct {
    TokenCodec codec;
    double limit;
  } cases[] = {{TokenCodec::kInt8, 0.52}, {TokenCodec::kInt4, 0.27}};
  for (const auto& c : cases) {
    for (const uint32_t num_kv_heads : {1U, 3U}) {
      const LayerBlockLayout layout{{30, num_kv_heads, 64}, c.codec, false, {0, 1000, 0}};
      const auto frame_bytes = static_cast<double>(FrameOf(0, layout).size());
      EXPECT_LE(frame_bytes / (2.0 * num_kv_heads * 1000 * 64 * 2), c.limit) << codec::TokenCodecName(c.codec);
    }
  }
}

struct Refusal {
  std::function<void(LayerBlockLayout&)> change;
  StatusCode code;
  std::string named;
};

std::vector<Refusal> Refusals() {
  const StatusCode invalid = StatusCode::kInvalidArgument;
  return {
      {[](LayerBlockLayout& l) { l.shape.num_layers = 0; }, invalid, "num_layers"},
      {[](LayerBlockLayout& l) { l.shape.num_layers = kMaxLayers + 1; }, invalid, "num_layers"},
      {[](LayerBlockLayout& l) { l.shape.num_layers = 5; }, invalid, "layer 5"},
      {[](LayerBlockLayout& l) { l.shape.num_kv_heads = 0; }, invalid, "num_kv_heads"},
      {[](LayerBlockLayout& l) { l.shape.num_kv_heads = UINT32_MAX; }, invalid, "num_kv_heads"},
      {[](LayerBlockLayout& l) { l.shape.head_dim = 30; }, StatusCode::kModelUnsupported, "head dimension"},
      {[](LayerBlockLayout& l) {
         l.split = {0, 0, 0};
       },
       invalid, "tokens 0"},
      {[](LayerBlockLayout& l) { l.split.num_sinks = 129; }, invalid, "num_sinks"},
      {[](LayerBlockLayout& l) { l.split.num_encoded = UINT32_MAX; }, invalid, "num_encoded"},
      {[](LayerBlockLayout& l) { l.split.num_tail = kMaxTokens + 1; }, invalid, "num_tail"},
      {[](LayerBlockLayout& l) {
         l.split = {4, kMaxTokens, 0};
       },
       invalid, "tokens 16777220"},
      {[](LayerBlockLayout& l) { l.codec = TokenCodec::kFp16; }, invalid, "equalized"},
      {[](LayerBlockLayout& l) {
         l.shape.num_kv_heads = kMaxKvHeads;
         l.split = {0, kMaxTokens, 0};
       },
       StatusCode::kCapacityExceeded, "payload"},
  };
}

// The model's equalization, for tokens to come.
TEST(LayerFrameTest, AMapMayComeBeforeThereIsAnythingToEncode) {
  LayerBlockLayout layout = kLayout;
  layout.split.num_encoded = 0;
  BlockFrame frame = AllocateLayer(11, 5, layout).value();
  const Buffer sealed = std::move(frame).Seal();
  const auto view = DecodeLayer(OpenFrame(sealed.bytes()).value());
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_TRUE(view->layout.equalized);
  EXPECT_EQ(view->layout.split, layout.split);
  EXPECT_EQ(view->block.size(), layout.total_bytes());
}

TEST(LayerFrameTest, WhatNoDecoderTakesIsNotEncoded) {
  for (const Refusal& refusal : Refusals()) {
    LayerBlockLayout layout = kLayout;
    refusal.change(layout);
    const Status status = AllocateLayer(11, 5, layout).status();
    EXPECT_EQ(status.code(), refusal.code) << status.message();
    EXPECT_NE(status.message().find(refusal.named), std::string::npos) << status.message();
  }
}

// A sealed frame whose prefix says something else than its block is.
std::vector<std::byte> WithPrefix(const LayerBlockLayout& layout, uint8_t codec_number, uint8_t equalized) {
  const Buffer frame = FrameOf(5, kLayout);
  std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
  const auto put = [&](size_t offset, auto value) { std::memcpy(bytes.data() + offset, &value, sizeof value); };
  put(40, codec_number);
  put(41, equalized);
  put(42, static_cast<uint16_t>(layout.shape.head_dim));
  put(44, layout.shape.num_kv_heads);
  put(48, layout.shape.num_layers);
  put(52, layout.split.num_sinks | layout.split.num_skipped << 8);
  put(56, layout.split.num_encoded);
  put(60, layout.split.num_tail);
  put(32, uint64_t{0});
  put(32, Hash64(bytes));
  return bytes;
}

Status DecodedStatus(std::span<const std::byte> bytes) { return DecodeLayer(OpenFrame(bytes).value()).status(); }

TEST(LayerFrameTest, WhatIsNotEncodedIsNotDecodedEither) {
  for (const Refusal& refusal : Refusals()) {
    LayerBlockLayout layout = kLayout;
    refusal.change(layout);
    const Status status = DecodedStatus(WithPrefix(layout, static_cast<uint8_t>(layout.codec), 1));
    EXPECT_EQ(status.code(), refusal.code) << status.message();
    EXPECT_NE(status.message().find(refusal.named), std::string::npos) << status.message();
  }
  EXPECT_EQ(DecodedStatus(WithPrefix(kLayout, 8, 1)).code(), StatusCode::kPrecisionUnsupported);
  EXPECT_EQ(DecodedStatus(WithPrefix(kLayout, 1, 2)).code(), StatusCode::kInvalidArgument);
}

TEST(LayerFrameTest, ALayoutThatNeedsOtherBytesIsRefused) {
  EXPECT_TRUE(DecodedStatus(WithPrefix(kLayout, 1, 1)).ok());
  for (const auto& change : std::vector<std::function<void(LayerBlockLayout&)>>{
           [](LayerBlockLayout& l) { l.split.num_encoded += 1; }, [](LayerBlockLayout& l) { l.split.num_tail -= 1; },
           [](LayerBlockLayout& l) { l.shape.num_kv_heads = 4; }, [](LayerBlockLayout& l) { l.shape.head_dim = 68; }}) {
    LayerBlockLayout layout = kLayout;
    change(layout);
    EXPECT_EQ(DecodedStatus(WithPrefix(layout, 1, 1)).code(), StatusCode::kOutOfRange);
  }
  EXPECT_EQ(DecodedStatus(WithPrefix(kLayout, 1, 0)).code(), StatusCode::kOutOfRange) << "the map is left over";
  EXPECT_EQ(DecodedStatus(WithPrefix(kLayout, 3, 1)).code(), StatusCode::kOutOfRange) << "another codec";
}

TEST(LayerFrameTest, SkippedTokensComeBack) {
  for (const uint32_t skipped : {0U, 1U, 300U, 0xFFFFFFU - kLayout.split.total() - 1}) {
    LayerBlockLayout layout = kLayout;
    layout.split.num_skipped = skipped;
    const Buffer frame = FrameOf(5, layout);
    EXPECT_EQ(DecodeLayer(OpenFrame(frame.bytes()).value()).value().layout.split, layout.split);
    EXPECT_EQ(frame.size(), FrameOf(5, kLayout).size());
  }
  LayerBlockLayout layout = kLayout;
  layout.split.num_skipped = 0xFFFFFF;
  EXPECT_EQ(AllocateLayer(11, 5, layout).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodedStatus(WithPrefix(layout, 1, 1)).code(), StatusCode::kInvalidArgument);
}

TEST(LayerFrameTest, APayloadWithoutPrefixIsRefused) {
  const Buffer frame = FrameOf(5, kLayout);
  const FrameView whole = OpenFrame(frame.bytes()).value();
  for (size_t length = 0; length < kBlockPrefixBytes; ++length) {
    EXPECT_EQ(DecodeLayer({whole.header, whole.payload.first(length)}).status().code(), StatusCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace kvant::wire
