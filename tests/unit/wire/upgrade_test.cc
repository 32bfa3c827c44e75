#include "kvant/wire/upgrade.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "kvant/base/hash.h"

namespace kvant::wire {
namespace {

using codec::Tier;

constexpr codec::UpgradeLayout kLayout{{4, 2, 64}, 5, {1, 1, 1}};
const std::vector<Tier> kIds = {Tier::kFp16, Tier::kInt8, Tier::kInt4, Tier::kDropped, Tier::kFp16,
                                Tier::kInt4, Tier::kInt8, Tier::kFp16, Tier::kFp16,    Tier::kDropped};

Buffer UpgradeOf(const codec::UpgradeLayout& layout) {
  BlockFrame frame = AllocateUpgrade(7, 3, layout).value();
  for (size_t i = 0; i < frame.block().size(); ++i) {
    frame.block()[i] = static_cast<std::byte>(i * 7);
  }
  return std::move(frame).Seal();
}

TEST(UpgradeTest, OffersRequestsAndUpgradesComeBack) {
  const UpgradeOffer offer{{{1, 2, 3, 4}, {}, {0, 100, 0, 0}}};
  const Buffer offered = EncodeUpgradeOffer(7, offer).value();
  EXPECT_EQ(DecodeUpgradeOffer(OpenFrame(offered.bytes()).value()).value(), offer);

  const Buffer asked = EncodeUpgradeRequest(7, {3, kLayout, kIds}).value();
  const UpgradeRequest request = DecodeUpgradeRequest(OpenFrame(asked.bytes()).value()).value();
  EXPECT_EQ(request.layer, 3U);
  EXPECT_EQ(request.layout, kLayout);
  EXPECT_EQ(request.ids, kIds);

  const Buffer upgrade = UpgradeOf(kLayout);
  const FrameView frame = OpenFrame(upgrade.bytes()).value();
  EXPECT_EQ(frame.header.session, 7U);
  const UpgradeView view = DecodeUpgrade(frame).value();
  EXPECT_EQ(view.layer, 3U);
  EXPECT_EQ(view.layout, kLayout);
  EXPECT_EQ(view.block.size(), kLayout.total_bytes());
  EXPECT_EQ(std::to_integer<int>(view.block[9]), 63);
}

struct Refusal {
  std::function<void(codec::UpgradeLayout&)> change;
  StatusCode code;
  const char* named;
};

std::vector<Refusal> Refusals() {
  return {
      {[](auto& l) { l.shape.num_layers = 3; }, StatusCode::kInvalidArgument, "layer 3"},
      {[](auto& l) { l.shape.num_layers = 1025; }, StatusCode::kInvalidArgument, "num_layers"},
      {[](auto& l) { l.shape.num_kv_heads = 0; }, StatusCode::kInvalidArgument, "num_kv_heads"},
      {[](auto& l) { l.shape.head_dim = 66; }, StatusCode::kModelUnsupported, "66"},
      {[](auto& l) { l.num_tokens = 0; }, StatusCode::kInvalidArgument, "tokens"},
      {[](auto& l) { l.num_tokens = kMaxTokens + 1; }, StatusCode::kInvalidArgument, "tokens"},
      {[](auto& l) { l.moves = {}; }, StatusCode::kInvalidArgument, "raised tokens"},
      {[](auto& l) { l.moves.int8_to_fp16 = 4; }, StatusCode::kInvalidArgument, "raised tokens"},
      {[](auto& l) { l.moves.int4_to_int8 = UINT32_MAX; }, StatusCode::kInvalidArgument, "int4 to int8"},
      {[](auto& l) {
         l.shape = {4, 1024, 256};
         l.num_tokens = kMaxTokens;
         l.moves = {0, kMaxTokens, 0};
       },
       StatusCode::kCapacityExceeded, "bytes"},
  };
}

// A sealed upgrade or request whose prefix says something else.
Status DecodedStatus(FrameType type, const codec::UpgradeLayout& layout) {
  const Buffer frame =
      type == FrameType::kUpgrade ? UpgradeOf(kLayout) : EncodeUpgradeRequest(7, {3, kLayout, kIds}).value();
  std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
  const auto put = [&](size_t offset, auto value) { std::memcpy(bytes.data() + offset, &value, sizeof value); };
  put(40, static_cast<uint16_t>(layout.shape.head_dim));
  put(42, static_cast<uint16_t>(layout.shape.num_layers));
  put(44, layout.shape.num_kv_heads);
  put(48, layout.num_tokens);
  put(52, layout.moves.int4_to_int8);
  put(56, layout.moves.int4_to_fp16);
  put(60, layout.moves.int8_to_fp16);
  put(32, uint64_t{0});
  put(32, Hash64(bytes));
  const FrameView view = OpenFrame(bytes).value();
  return type == FrameType::kUpgrade ? DecodeUpgrade(view).status() : DecodeUpgradeRequest(view).status();
}

TEST(UpgradeTest, FieldsBeyondTheirLimitsAreNamed) {
  for (const Refusal& refusal : Refusals()) {
    codec::UpgradeLayout layout = kLayout;
    refusal.change(layout);
    for (const Status& status : {AllocateUpgrade(7, 3, layout).status(), DecodedStatus(FrameType::kUpgrade, layout),
                                 DecodedStatus(FrameType::kUpgradeRequest, layout)}) {
      if (status.code() == StatusCode::kOutOfRange && refusal.code == StatusCode::kCapacityExceeded) {
        continue;  // the ids of a request alone fit: only its payload is too short
      }
      EXPECT_EQ(status.code(), refusal.code) << status.message();
      EXPECT_NE(status.message().find(refusal.named), std::string::npos) << status.message();
    }
  }
  codec::UpgradeLayout longer = kLayout;
  longer.num_tokens = 9;
  EXPECT_EQ(DecodedStatus(FrameType::kUpgrade, longer).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(DecodedStatus(FrameType::kUpgradeRequest, longer).code(), StatusCode::kOutOfRange);
}

TEST(UpgradeTest, BitsBeyondTheLastIdOfARequestAreRefused) {
  const Buffer frame = EncodeUpgradeRequest(7, {3, kLayout, kIds}).value();
  std::vector<std::byte> bytes(frame.bytes().begin(), frame.bytes().end());
  bytes[kBlockOffset + 1] |= std::byte{0x80};
  std::fill_n(bytes.begin() + 32, 8, std::byte{0});
  const uint64_t hash = Hash64(bytes);
  std::memcpy(bytes.data() + 32, &hash, sizeof hash);
  const Status status = DecodeUpgradeRequest(OpenFrame(bytes).value()).status();
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_NE(status.message().find("KV head 0"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvant::wire
