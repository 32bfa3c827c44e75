#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kvant/cache/sequence.h"
#include "support/block_reference.h"
#include "unit/cache/append_rows.h"
#include "unit/cache/attend_all.h"

namespace kvant::cache {
namespace {

using codec::Tier;
using codec::TierCounts;
using codec::TierMap;

constexpr uint32_t kHeads = 3;
// Pages need a multiple of 16.
codec::CacheShape ShapeOf(std::string_view word) {
  return {1, kHeads, codec::ParsePrecision(word).value().has_int4_pages() ? 48U : 40U};
}

class TiersTest : public testing::TestWithParam<const char*> {
 protected:
  LayerCache Filled(std::string_view word, uint32_t num_tokens, uint64_t seed = 1) {
    LayerCache cache(ShapeOf(word), codec::ParsePrecision(word).value(), kernels::BestIsa(), &account_);
    AppendRows(cache, num_tokens, seed);
    return cache;
  }
  MemoryAccount account_;
};

TierMap Some(uint32_t due, uint64_t seed = 5) {
  const uint32_t part = due / 8;
  return test::RandomTiers({part, part + 1, 4 * part + 1, due - 6 * part - 2}, kHeads, seed);
}

// The position of every token that can be attended to.
std::vector<int32_t> PositionsOf(const LayerCache& cache, uint32_t head) {
  std::vector<int32_t> positions;
  for (const kernels::AttendSlice& slice : AllSlices(cache, head)) {
    for (uint32_t t = slice.first_token; t < slice.first_token + slice.num_tokens; ++t) {
      positions.push_back(slice.segment.positions != nullptr ? slice.segment.positions[t]
                                                             : slice.segment.first_position + static_cast<int32_t>(t));
    }
  }
  return positions;
}

TEST_P(TiersTest, TheBlockIsTheReferencesByteForByte) {
  for (const uint32_t num_tokens : {170U, 300U, 515U}) {
    const LayerCache cache = Filled(GetParam(), num_tokens);
    const TierMap tiers = Some(cache.num_due(codec::PromptTail::kEncodeAll));
    const codec::LayerBlockLayout layout = cache.PlanBlock(codec::PromptTail::kEncodeAll, &tiers);
    std::vector<std::byte> block(layout.total_bytes(), std::byte{0xEE});
    std::vector<std::byte> expected(layout.total_bytes(), std::byte{0x11});
    ThreadPool pool(2);
    cache.WriteBlock(layout, block, &pool, &tiers);
    test::EncodeBlockRef(layout, test::MakeRows(ShapeOf(GetParam()), num_tokens, 1), expected, &tiers);
    EXPECT_EQ(std::memcmp(block.data(), expected.data(), block.size()), 0) << num_tokens;
  }
}

TEST_P(TiersTest, ABlockAdoptedIsTheCacheEncodedInPlace) {
  LayerCache local = Filled(GetParam(), 515);
  const LayerCache sender = Filled(GetParam(), 515);
  LayerCache receiver(ShapeOf(GetParam()), codec::ParsePrecision(GetParam()).value(), kernels::BestIsa(), &account_);
  const TierMap tiers = Some(local.num_due(codec::PromptTail::kEncodeAll));
  const codec::LayerBlockLayout layout = sender.PlanBlock(codec::PromptTail::kEncodeAll, &tiers);
  std::vector<std::byte> block(layout.total_bytes());
  sender.WriteBlock(layout, block, nullptr, &tiers);
  ASSERT_TRUE(local.EncodeDue(codec::PromptTail::kEncodeAll, nullptr, &tiers).ok());
  const Status adopted = receiver.AdoptBlock(layout, block);
  ASSERT_TRUE(adopted.ok()) << adopted.message();
  EXPECT_EQ(receiver.split(), local.split());
  EXPECT_EQ(receiver.tier_counts(), tiers.counts);
  EXPECT_EQ(receiver.num_tokens(), 515U);
  EXPECT_GE(receiver.stored_bytes(), layout.total_bytes());  // of the progressive code a zero is stored, not sent
  EXPECT_TRUE(layout.progressive || receiver.stored_bytes() == layout.total_bytes());
  for (uint32_t head = 0; head < kHeads; ++head) {
    EXPECT_EQ(PositionsOf(receiver, head), PositionsOf(local, head));
    EXPECT_EQ(AttendToAll(receiver, head), AttendToAll(local, head));
  }
}

TEST_P(TiersTest, EveryTokenIsAttendedToOnceAndADroppedOneNever) {
  LayerCache cache = Filled(GetParam(), 700);
  const uint32_t sinks = cache.split().num_sinks;
  const TierMap tiers = Some(cache.num_due(codec::PromptTail::kByPosition));
  ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr, &tiers).ok());
  for (uint32_t head = 0; head < kHeads; ++head) {
    std::vector<int32_t> positions = PositionsOf(cache, head);
    std::sort(positions.begin(), positions.end());
    std::vector<int32_t> expected;
    for (uint32_t position = 0; position < 700; ++position) {
      const uint32_t i = position - sinks;
      if (position < sinks || i >= tiers.counts.total() || tiers.OfHead(head)[i] != Tier::kDropped) {
        expected.push_back(static_cast<int32_t>(position));
      }
    }
    EXPECT_EQ(positions, expected);
  }
}

TEST_P(TiersTest, GeneratedTokensFollowInTheInt8Tier) {
  LayerCache cache = Filled(GetParam(), 300);
  const TierMap tiers = Some(cache.num_due(codec::PromptTail::kEncodeAll));
  ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kEncodeAll, nullptr, &tiers).ok());
  const TierCounts before = cache.tier_counts();
  for (int i = 0; i < 300; ++i) {
    AppendRows(cache, 1, static_cast<uint64_t>(i) + 7);
    ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  }
  const TierCounts after = cache.tier_counts();
  EXPECT_GT(after.int8, before.int8 + 127);
  EXPECT_EQ(after.fp16, before.fp16);
  EXPECT_EQ(after.int4, before.int4);
  EXPECT_EQ(cache.num_tokens(), 600U);
  const std::vector<int32_t> positions = PositionsOf(cache, 1);
  EXPECT_EQ(positions.size(), 600U - tiers.counts.dropped);
  EXPECT_EQ(*std::max_element(positions.begin(), positions.end()), 599);
}

TEST_P(TiersTest, OneTierIsThePlainPrecision) {
  std::string options = std::string(GetParam()).substr(std::string(GetParam()).find(',') + 1);
  options = options.substr(0, options.find(",int4"));
  for (const auto& [tier, word] : {std::pair(Tier::kInt8, "int8,"), std::pair(Tier::kInt4, "int4,")}) {
    const codec::Precision precision = codec::ParsePrecision(GetParam()).value();
    if (tier == Tier::kInt4 && (precision.is_progressive() || precision.has_int4_pages())) {
      continue;  // the upper half of the int8 code, or pages: other 4-bit rules
    }
    LayerCache spectrum = Filled(GetParam(), 515);
    LayerCache plain(spectrum.shape(), codec::ParsePrecision(word + options).value(), kernels::BestIsa(), &account_);
    AppendRows(plain, 515, 1);
    TierMap tiers;
    tiers.counts.of(tier) = spectrum.num_due(codec::PromptTail::kEncodeAll);
    tiers.ids.assign(size_t{tiers.counts.total()} * kHeads, tier);
    ASSERT_TRUE(spectrum.EncodeDue(codec::PromptTail::kEncodeAll, nullptr, &tiers).ok());
    ASSERT_TRUE(plain.EncodeDue(codec::PromptTail::kEncodeAll, nullptr).ok());
    EXPECT_EQ(spectrum.stored_bytes(), plain.stored_bytes() + (precision.has_int4_pages() ? 24 : 16));
    for (uint32_t head = 0; head < kHeads; ++head) {
      EXPECT_EQ(AttendToAll(spectrum, head), AttendToAll(plain, head)) << word;
    }
  }
}

TEST_P(TiersTest, IdsThatAreNotAsAnnouncedAreRefused) {
  const LayerCache sender = Filled(GetParam(), 300);
  const TierMap tiers = Some(sender.num_due(codec::PromptTail::kEncodeAll));
  const codec::LayerBlockLayout layout = sender.PlanBlock(codec::PromptTail::kEncodeAll, &tiers);
  std::vector<std::byte> block(layout.total_bytes());
  sender.WriteBlock(layout, block, nullptr, &tiers);
  const auto ids = codec::HeadOf(layout, std::span<std::byte>(block), 1).tier_ids;
  ids[3] ^= std::byte{1};
  LayerCache receiver(ShapeOf(GetParam()), codec::ParsePrecision(GetParam()).value(), kernels::BestIsa(), &account_);
  const Status refused = receiver.AdoptBlock(layout, block);
  EXPECT_EQ(refused.code(), StatusCode::kCorruption);
  EXPECT_NE(refused.message().find("KV head 1"), std::string::npos) << refused.message();
  EXPECT_EQ(receiver.num_tokens(), 0U);
  LayerCache plain(ShapeOf(GetParam()), codec::ParsePrecision("int8").value(), kernels::BestIsa(), &account_);
  EXPECT_EQ(plain.AdoptBlock(layout, block).code(), StatusCode::kMismatch);
}

INSTANTIATE_TEST_SUITE_P(All, TiersTest,
                         testing::Values("spectrum:b=0.5,eq=on", "spectrum:b=0.5,eq=off,sinks=0",
                                         "spectrum:b=0.5,sinks=32", "progressive:b=0.5,sinks=4",
                                         "spectrum:b=0.5,eq=on,int4=pages", "spectrum:b=0.5,eq=off,sinks=2,int4=pages"),
                         [](const auto& instance) { return "case" + std::to_string(instance.index); });

}  // namespace
}  // namespace kvant::cache
