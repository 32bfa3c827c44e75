// A layer with a sliding window against one without: the same attention from less memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "kvant/cache/attend_chunks.h"
#include "kvant/cache/sequence.h"
#include "support/block_reference.h"
#include "unit/cache/attend_all.h"

namespace kvant::cache {
namespace {

constexpr codec::CacheShape kShape{1, 2, 64};
constexpr uint32_t kWindow = 200;

std::vector<Half> RandomRows(uint32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<Half> rows(size_t{count} * kShape.head_dim);
  std::generate(rows.begin(), rows.end(), [&] { return ToHalf(normal(random)); });
  return rows;
}

class WindowTest : public testing::TestWithParam<const char*> {
 protected:
  LayerCache NewCache() { return {kShape, *codec::ParsePrecision(GetParam()), kernels::BestIsa(), &account_}; }

  static void Append(LayerCache& cache, uint32_t count) {
    Fill(cache, count);
    ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
    cache.FreeUnreachable();
  }
  static void Fill(LayerCache& cache, uint32_t count) {
    const uint32_t first = cache.num_tokens();
    ASSERT_TRUE(cache.ExtendExact(count).ok());
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      const std::vector<Half> keys = RandomRows(count, first * 4 + head);
      const std::vector<Half> values = RandomRows(count, first * 4 + 2 + head);
      cache.StoreExact(head, first, count, keys.data(), values.data(), kShape.head_dim);
    }
  }
  // Of a spectrum, for the tokens that are due and in reach.
  std::optional<codec::TierMap> TiersOf(const LayerCache& cache, codec::PromptTail tail) {
    const uint32_t count = cache.num_due(tail) - cache.num_skipped_due(tail);
    if (!codec::ParsePrecision(GetParam())->spectrum || cache.num_due(tail) == 0) {
      return std::nullopt;
    }
    return test::RandomTiers({count / 4, count / 3, count - count / 4 - count / 3, 0}, kShape.num_kv_heads, 5);
  }

  // Of the newest token's query, over every chunk.
  static std::vector<float> Attend(const LayerCache& cache, uint32_t head) {
    const std::vector<float> q = SomeQuery(kShape.head_dim);
    const auto position = static_cast<int32_t>(cache.num_tokens() - 1);
    kernels::AttendQueries queries;
    queries.data = q.data();
    queries.num_queries = 1;
    queries.q_heads_per_kv_head = 1;
    queries.head_dim = kShape.head_dim;
    queries.positions = std::span(&position, 1);
    queries.window = kWindow;
    kernels::AttendScratch scratch;
    kernels::RowAttention rows(kernels::BestIsa(), queries, scratch);
    const uint32_t num_chunks = cache.num_chunks();
    std::vector<float> outs(size_t{num_chunks} * kShape.head_dim);
    std::vector<float> maxes(num_chunks);
    std::vector<float> sums(num_chunks);
    std::vector<const float*> pointers;
    AttendChunks(cache, head, 0, num_chunks, rows, [&](uint32_t chunk) {
      float* out = outs.data() + size_t{chunk} * kShape.head_dim;
      pointers.push_back(out);
      return kernels::AttendPartial{out, &maxes[chunk], &sums[chunk]};
    });
    std::vector<float> result(kShape.head_dim);
    kernels::MergePartials(pointers, maxes, sums, result);
    return result;
  }

  MemoryAccount account_;
};

TEST_P(WindowTest, WhatItFreesNoQueryMisses) {
  LayerCache windowed = NewCache();
  windowed.SetWindow(kWindow);
  LayerCache whole = NewCache();
  Append(windowed, 180);  // all in reach: both make their map of the same keys
  Append(whole, 180);
  uint32_t step = 920;  // two chunks of prompt, then tokens by ones and twenties, then a second prompt
  while (whole.num_tokens() < 2200) {
    Append(windowed, step);
    Append(whole, step);
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      ASSERT_EQ(Attend(windowed, head), Attend(whole, head)) << whole.num_tokens() << " tokens";
    }
    step = whole.num_tokens() == 1800 ? 400 : whole.num_tokens() < 1400 ? 1 : 20;
  }
  EXPECT_EQ(windowed.num_tokens(), whole.num_tokens());
  EXPECT_LT(windowed.allocated_bytes(), whole.allocated_bytes() / 2);
}

// A prompt longer than the window: only what is in reach is written, and what adopts it is the local cache.
TEST_P(WindowTest, ABlockHoldsWhatIsInReach) {
  for (const uint32_t num_tokens : {150U, 201U, 330U, 1100U}) {
    for (const codec::PromptTail tail : {codec::PromptTail::kEncodeAll, codec::PromptTail::kByPosition}) {
      LayerCache sender = NewCache();
      sender.SetWindow(kWindow);
      Fill(sender, num_tokens);
      LayerCache local = NewCache();
      local.SetWindow(kWindow);
      Fill(local, num_tokens);
      LayerCache receiver = NewCache();
      receiver.SetWindow(kWindow);
      std::optional<codec::TierMap> tiers = TiersOf(sender, tail);
      const codec::LayerBlockLayout layout = sender.PlanBlock(tail, tiers ? &*tiers : nullptr);
      EXPECT_EQ(layout.split.total(), std::min(num_tokens, kWindow));
      EXPECT_EQ(layout.split.num_positions(), num_tokens);
      std::vector<std::byte> block(layout.total_bytes());
      sender.WriteBlock(layout, block, nullptr, tiers ? &*tiers : nullptr);
      const Status adopted = receiver.AdoptBlock(layout, block);
      ASSERT_TRUE(adopted.ok()) << adopted.message();
      ASSERT_TRUE(local.EncodeDue(tail, nullptr, tiers ? &*tiers : nullptr).ok());
      const auto agree = [&] {
        EXPECT_EQ(receiver.num_tokens(), local.num_tokens());
        EXPECT_EQ(receiver.tier_counts(), local.tier_counts());
        EXPECT_EQ(receiver.stored_bytes(), local.stored_bytes());
        EXPECT_EQ(receiver.allocated_bytes(), local.allocated_bytes());
        for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
          EXPECT_EQ(Attend(receiver, head), Attend(local, head)) << num_tokens;
        }
      };
      agree();
      for (int i = 0; i < 300; ++i) {
        Append(receiver, 1);
        Append(local, 1);
      }
      agree();
    }
  }
}

TEST_P(WindowTest, FiguresCountWhatTheNewestTokenSees) {
  LayerCache windowed = NewCache();
  windowed.SetWindow(kWindow);
  Append(windowed, 150);
  EXPECT_EQ(windowed.num_reachable(), 150U);
  EXPECT_EQ(windowed.stored_bytes(), windowed.block_layout().total_bytes());
  Append(windowed, 1000);
  EXPECT_EQ(windowed.num_reachable(), kWindow);
  EXPECT_EQ(windowed.num_tokens(), 1150U);
  const codec::TokenSplit split = windowed.reachable_layout().split;
  EXPECT_EQ(split.num_sinks, 0U);
  EXPECT_EQ(split.total(), kWindow);
  EXPECT_LT(windowed.stored_bytes(), windowed.block_layout().total_bytes() / 2);
  windowed.Clear();
  EXPECT_EQ(windowed.num_tokens(), 0U);
  EXPECT_EQ(account_.in_use_bytes(), 0U);
}

TEST_P(WindowTest, ASequenceTakesAWindowALayer) {
  const std::vector<uint32_t> windows = {kWindow, 0};
  Sequence sequence({2, kShape.num_kv_heads, kShape.head_dim}, *codec::ParsePrecision(GetParam()), kernels::BestIsa(),
                    &account_);
  Append(sequence.layer(0), 700);
  Append(sequence.layer(1), 700);
  const uint64_t before = sequence.allocated_bytes();
  sequence.SetWindows(windows);
  EXPECT_LT(sequence.allocated_bytes(), before);
  const uint64_t token_bytes = 2 * kShape.num_kv_heads * kShape.head_dim * sizeof(Half);
  EXPECT_EQ(sequence.reachable_bytes_fp16(), (kWindow + 700) * token_bytes);
  EXPECT_EQ(sequence.num_tokens(), 700U);
}

INSTANTIATE_TEST_SUITE_P(Words, WindowTest,
                         testing::Values("fp16", "int8", "int4", "int4,eq=off,sinks=0", "int8,sinks=32",
                                         "spectrum:b=0.5", "spectrum:b=0.3,int4=pages", "progressive:b=0.5,sinks=0"),
                         [](const auto& word) {
                           std::string name = word.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace kvant::cache
