#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kvant/cache/sequence.h"
#include "unit/cache/attend_all.h"

namespace kvant::cache {
namespace {

constexpr codec::CacheShape kShape{1, 3, 40};
constexpr const char* kWords[] = {"fp16", "int8", "int4", "int8,eq=off", "int4,eq=off,sinks=0", "int4,sinks=32"};

struct Rows {
  std::vector<Half> keys;
  std::vector<Half> values;
};

// Rows of one KV head: a few channels with an offset and a gain, as keys have them.
Rows RandomRows(uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  Rows rows;
  for (uint32_t i = 0; i < count * kShape.head_dim; ++i) {
    const uint32_t channel = i % kShape.head_dim;
    rows.keys.push_back(ToHalf((channel == 5 ? 30.0F : 0.0F) + normal(random) * (channel == 7 ? 12.0F : 1.0F)));
    rows.values.push_back(ToHalf(normal(random)));
  }
  return rows;
}

class LayerCacheTest : public testing::TestWithParam<const char*> {
 protected:
  LayerCache NewCache() { return {kShape, *codec::ParsePrecision(GetParam()), kernels::BestIsa(), &account_}; }

  void Append(LayerCache& cache, uint32_t count, uint32_t seed) {
    const uint32_t first = cache.num_tokens();
    ASSERT_TRUE(cache.ExtendExact(count).ok());
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      const Rows rows = RandomRows(first + count, seed + head);
      const size_t skip = size_t{first} * kShape.head_dim;
      cache.StoreExact(head, first, count, rows.keys.data() + skip, rows.values.data() + skip, kShape.head_dim);
    }
  }

  MemoryAccount account_;
};

TEST_P(LayerCacheTest, ChunksCoverEachTokenOnceInOrder) {
  LayerCache cache = NewCache();
  Append(cache, 700, 1);
  ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  uint32_t next = 0;
  for (uint32_t chunk = 0; chunk < cache.num_chunks(); ++chunk) {
    const ChunkSlices part = cache.Chunk(1, chunk);
    for (const kernels::AttendSlice& slice : part.span()) {
      EXPECT_EQ(slice.segment.first_position + static_cast<int32_t>(slice.first_token), static_cast<int32_t>(next));
      EXPECT_EQ(slice.first_token % codec::kTileTokens, 0U);
      next += slice.num_tokens;
    }
  }
  EXPECT_EQ(next, 700U);
}

TEST_P(LayerCacheTest, ABlockAdoptedIsTheCacheEncodedInPlace) {
  for (const uint32_t count : {1U, 3U, 130U, 140U, 515U}) {
    LayerCache local = NewCache();
    LayerCache sender = NewCache();
    LayerCache receiver = NewCache();
    Append(local, count, 1);
    Append(sender, count, 1);
    const codec::LayerBlockLayout layout = sender.PlanBlock(codec::PromptTail::kEncodeAll);
    std::vector<std::byte> block(layout.total_bytes());
    ThreadPool pool(2);
    sender.WriteBlock(layout, block, &pool);
    ASSERT_TRUE(local.EncodeDue(codec::PromptTail::kEncodeAll, nullptr).ok());
    const Status adopted = receiver.AdoptBlock(layout, block);
    ASSERT_TRUE(adopted.ok()) << adopted.message();
    EXPECT_EQ(receiver.split(), local.split()) << count;
    EXPECT_EQ(receiver.stored_bytes(), layout.total_bytes());
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      EXPECT_EQ(AttendToAll(receiver, head), AttendToAll(local, head)) << count << " tokens, head " << head;
    }
  }
}

TEST_P(LayerCacheTest, GeneratedTokensGiveTheCodesOfAPrompt) {
  // Feeding recorded rows one by one or at once: with an equal map equal codes; the map differs only where it was
  // fixed from other tokens, so it is fixed here by a common beginning.
  LayerCache at_once = NewCache();
  LayerCache by_step = NewCache();
  for (LayerCache* cache : {&at_once, &by_step}) {
    Append(*cache, 300, 1);
    ASSERT_TRUE(cache->EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  }
  Append(at_once, 260, 1);
  ASSERT_TRUE(at_once.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  for (int i = 0; i < 260; ++i) {
    Append(by_step, 1, 1);
    ASSERT_TRUE(by_step.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  }
  EXPECT_EQ(at_once.split(), by_step.split());
  for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
    EXPECT_EQ(AttendToAll(at_once, head), AttendToAll(by_step, head));
  }
}

TEST_P(LayerCacheTest, MemoryGrowsWithTokensAndGoesWithThem) {
  {
    LayerCache cache = NewCache();
    Append(cache, 400, 1);
    ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kEncodeAll, nullptr).ok());
    EXPECT_GT(account_.in_use_bytes(), 0U);
    EXPECT_LE(cache.stored_bytes(), cache.allocated_bytes());
    cache.Clear();
    EXPECT_EQ(cache.num_tokens(), 0U);
    EXPECT_EQ(account_.in_use_bytes(), 0U);
    Append(cache, 5, 1);
    EXPECT_EQ(cache.num_tokens(), 5U);
  }
  EXPECT_EQ(account_.in_use_bytes(), 0U);
}

TEST_P(LayerCacheTest, OnlyExactTokensCanBeTakenBack) {
  LayerCache cache = NewCache();
  Append(cache, 300, 1);
  ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  const uint32_t exact = cache.split().num_tail;
  const std::vector<float> before = AttendToAll(cache, 0);
  Append(cache, 7, 1);
  ASSERT_TRUE(cache.ShrinkExact(7).ok());
  EXPECT_EQ(AttendToAll(cache, 0), before);
  if (cache.split().num_encoded > 0) {
    EXPECT_EQ(cache.ShrinkExact(exact + 1).code(), StatusCode::kOutOfRange);
    EXPECT_EQ(cache.num_tokens(), 300U);
  }
}

TEST_P(LayerCacheTest, DamagedBlocksAreRefused) {
  LayerCache sender = NewCache();
  Append(sender, 300, 1);
  const codec::LayerBlockLayout layout = sender.PlanBlock(codec::PromptTail::kEncodeAll);
  std::vector<std::byte> block(layout.total_bytes());
  sender.WriteBlock(layout, block, nullptr);
  codec::LayerBlockLayout other = layout;
  other.shape.head_dim = 44;
  LayerCache receiver = NewCache();
  EXPECT_EQ(receiver.AdoptBlock(other, std::vector<std::byte>(other.total_bytes())).code(), StatusCode::kMismatch);
  const Half infinity{0x7C00};
  const auto head = codec::HeadOf(layout, std::span<std::byte>(block), 2);
  const std::span<std::byte> target = codec::HasScale(layout.codec)
                                          ? head.tiers[static_cast<size_t>(codec::TierOf(layout.codec))].key_scales
                                          : head.tail_values;
  std::memcpy(target.data() + 6, &infinity, sizeof infinity);
  const Status damaged = receiver.AdoptBlock(layout, block);
  EXPECT_EQ(damaged.code(), StatusCode::kNumeric);
  EXPECT_NE(damaged.message().find("KV head 2"), std::string::npos) << damaged.message();
  EXPECT_EQ(receiver.num_tokens(), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, LayerCacheTest, testing::ValuesIn(kWords), [](const auto& instance) {
  std::string name = instance.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ',' || c == '='; }, '_');
  return name;
});

TEST(MemoryAccount, SaysBothSizesWhenFull) {
  MemoryAccount account(1000);
  const Result<std::byte*> page = account.AllocatePage(640);
  ASSERT_TRUE(page.ok());
  const Status full = account.AllocatePage(448).status();
  EXPECT_EQ(full.code(), StatusCode::kCapacityExceeded);
  EXPECT_NE(full.message().find("448"), std::string::npos);
  EXPECT_NE(full.message().find("1000"), std::string::npos);
  account.FreePage(*page, 640);
  EXPECT_EQ(account.in_use_bytes(), 0U);
  EXPECT_EQ(account.peak_bytes(), 640U);
}

TEST(MemoryAccount, PagesAreZeroedAlignedAndApart) {
  MemoryAccount account;
  for (const uint64_t bytes : {64U, 9216U, 3145728U}) {
    std::vector<std::byte*> pages;
    for (int i = 0; i < 300 && bytes * pages.size() < 12'000'000; ++i) {
      const Result<std::byte*> page = account.AllocatePage(bytes);
      ASSERT_TRUE(page.ok());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*page) % 64, 0U);
      EXPECT_EQ(std::count(*page, *page + bytes, std::byte{0}), static_cast<ptrdiff_t>(bytes));
      std::memset(*page, 0xFF, bytes);  // would show in a neighbour that overlaps
      pages.push_back(*page);
    }
    account.FreePage(pages.back(), bytes);
    pages.pop_back();
    const Result<std::byte*> again = account.AllocatePage(bytes);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(std::count(*again, *again + bytes, std::byte{0}), static_cast<ptrdiff_t>(bytes));
    pages.push_back(*again);
    for (std::byte* page : pages) {
      account.FreePage(page, bytes);
    }
  }
  EXPECT_EQ(account.in_use_bytes(), 0U);
}

}  // namespace
}  // namespace kvant::cache
