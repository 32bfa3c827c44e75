#include <gtest/gtest.h>

#include <cstring>

#include "kvant/cache/sequence.h"
#include "support/block_reference.h"
#include "unit/cache/append_rows.h"
#include "unit/cache/attend_all.h"

namespace kvant::cache {
namespace {

using codec::Tier;
using codec::TierCounts;
using codec::TierMap;

constexpr codec::CacheShape kShape{1, 3, 40};
constexpr uint32_t kTokens = 515;
constexpr codec::PromptTail kAll = codec::PromptTail::kEncodeAll;

class UpgradeTest : public testing::Test {
 protected:
  LayerCache Empty(std::string_view word = "progressive:b=0.5") {
    return {kShape, codec::ParsePrecision(word).value(), kernels::BestIsa(), &account_};
  }
  LayerCache Exact(uint32_t count = kTokens) {
    LayerCache cache = Empty();
    AppendRows(cache, count, 1);
    return cache;
  }
  LayerCache Received(const TierMap& tiers) {
    const LayerCache sender = Exact();
    LayerCache receiver = Empty();
    const codec::LayerBlockLayout layout = sender.PlanBlock(kAll, &tiers);
    std::vector<std::byte> block(layout.total_bytes());
    sender.WriteBlock(layout, block, nullptr, &tiers);
    const Status adopted = receiver.AdoptBlock(layout, block);
    EXPECT_TRUE(adopted.ok()) << adopted.message();
    return receiver;
  }
  struct Upgrade {
    codec::UpgradeLayout layout;
    std::vector<std::byte> block;
  };
  Upgrade Between(const TierMap& from, const TierMap& to) {
    ThreadPool pool(2);
    Upgrade upgrade{{kShape, from.counts.total(), codec::CountMoves(from.OfHead(0), to.OfHead(0)).value()}, {}};
    upgrade.block.resize(upgrade.layout.total_bytes());
    Exact().WriteUpgrade(upgrade.layout, from, to, upgrade.block, &pool);
    return upgrade;
  }
  MemoryAccount account_;
};

// The same ids, raised: of every head as many tokens, but not the same ones.
TierMap Raised(const TierMap& from, TierCounts left) {
  TierMap to = from;
  for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
    TierCounts moves = left;
    for (uint32_t t = 0; t < from.counts.total(); ++t) {
      Tier& tier = to.ids[size_t{head} * from.counts.total() + (t * 5 + head) % from.counts.total()];
      if (tier == Tier::kInt8 && moves.int8 > 0) {
        tier = Tier::kFp16;
        --moves.int8;
      } else if (tier == Tier::kInt4 && moves.int4 > 0) {
        tier = moves.int4-- % 2 == 0 ? Tier::kInt8 : Tier::kFp16;
      }
    }
  }
  to.counts = codec::CountTiers(to.OfHead(0));
  return to;
}

void ExpectSame(const LayerCache& a, const LayerCache& b) {
  EXPECT_EQ(a.split(), b.split());
  EXPECT_EQ(a.tier_counts(), b.tier_counts());
  EXPECT_EQ(a.stored_bytes(), b.stored_bytes());
  for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
    EXPECT_EQ(AttendToAll(a, head), AttendToAll(b, head));
    const auto slices_a = AllSlices(a, head);
    const auto slices_b = AllSlices(b, head);
    ASSERT_EQ(slices_a.size(), slices_b.size());
    for (size_t i = 0; i < slices_a.size(); ++i) {
      ASSERT_EQ(slices_a[i].num_tokens, slices_b[i].num_tokens);
      if (slices_a[i].segment.positions != nullptr) {
        EXPECT_TRUE(std::equal(slices_a[i].segment.positions, slices_a[i].segment.positions + slices_a[i].num_tokens,
                               slices_b[i].segment.positions));
      }
      const size_t page = slices_a[i].first_token / slices_a[i].segment.layout->capacity;
      EXPECT_EQ(std::memcmp(slices_a[i].segment.pages[page] + slices_a[i].segment.record_offset,
                            slices_b[i].segment.pages[page] + slices_b[i].segment.record_offset,
                            slices_a[i].segment.layout->record_bytes),
                0);
    }
  }
}

TierMap AllOf(Tier tier, uint32_t count) {
  TierMap map;
  map.counts.of(tier) = count;
  map.ids.assign(size_t{count} * kShape.num_kv_heads, tier);
  return map;
}

TEST_F(UpgradeTest, RaisedStepByStepIsSentAtOnce) {
  const uint32_t due = Exact().num_due(kAll);
  LayerCache cache = Received(AllOf(Tier::kInt4, due));
  for (const auto& [from, to] : {std::pair(Tier::kInt4, Tier::kInt8), std::pair(Tier::kInt8, Tier::kFp16)}) {
    const Upgrade upgrade = Between(AllOf(from, due), AllOf(to, due));
    const Status adopted = cache.AdoptUpgrade(upgrade.layout, upgrade.block, nullptr);
    ASSERT_TRUE(adopted.ok()) << adopted.message();
    ExpectSame(cache, Received(AllOf(to, due)));
  }
}

TEST_F(UpgradeTest, AnyTokensOfAnyTierAreRaised) {
  const uint32_t due = Exact().num_due(kAll);
  const TierMap from = test::RandomTiers({50, 100, 250, due - 400}, kShape.num_kv_heads, 3);
  const TierMap to = Raised(from, {0, 40, 120, 0});
  LayerCache cache = Received(from);
  const Upgrade upgrade = Between(from, to);
  ThreadPool pool(2);
  ASSERT_TRUE(cache.AdoptUpgrade(upgrade.layout, upgrade.block, &pool).ok());
  ExpectSame(cache, Received(to));
  EXPECT_EQ(cache.EncodedTiers(due).ids, to.ids);
}

TEST_F(UpgradeTest, WhatWasGeneratedMeanwhileStays) {
  const uint32_t due = Exact().num_due(kAll);
  const TierMap from = test::RandomTiers({0, 211, due - 211, 0}, kShape.num_kv_heads, 3);
  const TierMap to = Raised(from, {0, 30, 100, 0});
  LayerCache early = Received(from);
  LayerCache late = Received(from);
  const Upgrade upgrade = Between(from, to);
  const auto generate = [](LayerCache& cache) {
    for (int i = 0; i < 200; ++i) {
      AppendRows(cache, 1, static_cast<uint64_t>(i) + 7);
      ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
    }
  };
  ASSERT_TRUE(early.AdoptUpgrade(upgrade.layout, upgrade.block, nullptr).ok());
  generate(early);
  generate(late);
  ASSERT_TRUE(late.AdoptUpgrade(upgrade.layout, upgrade.block, nullptr).ok());
  ExpectSame(late, early);
}

TEST_F(UpgradeTest, WhatIsNotAnUpgradeOfThisCacheIsRefusedAndChangesNothing) {
  const uint32_t due = Exact().num_due(kAll);
  const TierMap from = test::RandomTiers({0, 211, due - 211, 0}, kShape.num_kv_heads, 3);
  const Upgrade good = Between(from, Raised(from, {0, 30, 100, 0}));
  LayerCache cache = Received(from);
  const auto refused = [&](const codec::UpgradeLayout& layout, std::span<const std::byte> block, StatusCode code) {
    const Status status = cache.AdoptUpgrade(layout, block, nullptr);
    EXPECT_EQ(status.code(), code) << status.message();
  };
  Upgrade wrong_ids = good;
  codec::HeadOf(wrong_ids.layout, std::span<std::byte>(wrong_ids.block), 2).tier_ids[3] ^= std::byte{2};
  refused(wrong_ids.layout, wrong_ids.block, StatusCode::kCorruption);
  codec::UpgradeLayout other = good.layout;
  other.shape.num_layers = 2;
  refused(other, good.block, StatusCode::kMismatch);
  Upgrade too_long{{kShape, due + 8, {}}, {}};
  too_long.block.resize(too_long.layout.total_bytes());
  refused(too_long.layout, too_long.block, StatusCode::kMismatch);
  ExpectSame(cache, Received(from));
  ASSERT_TRUE(cache.AdoptUpgrade(good.layout, good.block, nullptr).ok());
  refused(good.layout, good.block, StatusCode::kCorruption);  // a second time
  LayerCache plain = Empty("spectrum:b=0.5");
  EXPECT_EQ(plain.AdoptUpgrade(good.layout, good.block, nullptr).code(), StatusCode::kMismatch);
}

TEST_F(UpgradeTest, WithoutRoomNothingChanges) {
  const uint32_t due = Exact().num_due(kAll);
  const TierMap from = AllOf(Tier::kInt4, due);
  const Upgrade upgrade = Between(from, AllOf(Tier::kFp16, due));
  MemoryAccount small(300 << 10);
  LayerCache cache(kShape, codec::ParsePrecision("progressive:b=0.25").value(), kernels::BestIsa(), &small);
  const LayerCache sender = Exact();
  const codec::LayerBlockLayout layout = sender.PlanBlock(kAll, &from);
  std::vector<std::byte> block(layout.total_bytes());
  sender.WriteBlock(layout, block, nullptr, &from);
  ASSERT_TRUE(cache.AdoptBlock(layout, block).ok());
  const uint64_t before = small.in_use_bytes();
  EXPECT_EQ(cache.AdoptUpgrade(upgrade.layout, upgrade.block, nullptr).code(), StatusCode::kCapacityExceeded);
  EXPECT_EQ(small.in_use_bytes(), before);
  ExpectSame(cache, Received(from));
}

}  // namespace
}  // namespace kvant::cache
