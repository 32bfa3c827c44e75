// Layers of pair pages: packed in place, sent, adopted, attended to.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kvant/cache/sequence.h"
#include "support/block_reference.h"
#include "unit/cache/append_rows.h"
#include "unit/cache/attend_all.h"

namespace kvant::cache {
namespace {

constexpr codec::CacheShape kShape{1, 3, 64};

class PairPagesTest : public testing::TestWithParam<const char*> {
 protected:
  codec::Precision precision() const { return codec::ParsePrecision(GetParam()).value(); }
  uint32_t page_tokens() const { return precision().pairs->page_tokens; }

  LayerCache Filled(uint32_t num_tokens, uint32_t window = 0, kernels::Isa isa = kernels::BestIsa()) {
    LayerCache cache(kShape, precision(), isa, &account_);
    cache.SetWindow(window);
    AppendRows(cache, num_tokens, 1);
    cache.SetPairMaps(codec::PairLayout::kInterleaved, Maps());
    return cache;
  }
  // Every head its own map, of equal bits.
  static std::vector<codec::WidthMap> Maps() {
    std::mt19937 random(5);
    std::vector<codec::WidthMap> maps;
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      codec::WidthMap map{codec::PairLayout::kInterleaved, {}};
      for (uint32_t pair = 0; pair < kShape.head_dim / 2; ++pair) {
        map.widths.push_back(static_cast<uint8_t>(pair % 4 + 1));
      }
      std::shuffle(map.widths.begin(), map.widths.end(), random);
      maps.push_back(map);
    }
    return maps;
  }
  static void ExpectSame(const LayerCache& a, const LayerCache& b) {
    EXPECT_EQ(a.num_tokens(), b.num_tokens());
    EXPECT_EQ(a.split(), b.split());
    EXPECT_EQ(a.stored_bytes(), b.stored_bytes());
    EXPECT_EQ(a.allocated_bytes(), b.allocated_bytes());
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      EXPECT_EQ(AttendToAll(a, head), AttendToAll(b, head));
    }
  }
  MemoryAccount account_;
};

TEST_P(PairPagesTest, ABlockAdoptedIsTheCachePackedInPlace) {
  for (const uint32_t num_tokens : {20U, 141U, 300U, 1100U}) {
    for (const uint32_t window : {0U, 200U}) {
      LayerCache local = Filled(num_tokens, window);
      const LayerCache sender = Filled(num_tokens, window, kernels::Isa::kScalar);
      LayerCache receiver(kShape, precision(), kernels::BestIsa(), &account_);
      receiver.SetWindow(window);
      const codec::LayerBlockLayout layout = sender.PlanBlock(codec::PromptTail::kEncodeAll);
      std::vector<std::byte> block(layout.total_bytes());
      ThreadPool pool(2);
      sender.WriteBlock(layout, block, &pool);
      const Status adopted = receiver.AdoptBlock(layout, block);
      ASSERT_TRUE(adopted.ok()) << adopted.message();
      ASSERT_TRUE(local.EncodeDue(codec::PromptTail::kByPosition, &pool).ok());
      ExpectSame(receiver, local);
      for (int i = 0; i < 300; ++i) {
        for (LayerCache* cache : {&receiver, &local}) {
          AppendRows(*cache, 1, static_cast<uint64_t>(i) + 9);
          ASSERT_TRUE(cache->EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
        }
      }
      ExpectSame(receiver, local);
      EXPECT_LT(local.split().num_tail, page_tokens());
    }
  }
}

// The layout is a function of position alone: tokens one by one lie where the prompt's would, in the same codes.
TEST_P(PairPagesTest, TokensThatComeOneByOneLieAsAPromptDoes) {
  LayerCache prompt = Filled(777);
  ASSERT_TRUE(prompt.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  LayerCache grown(kShape, precision(), kernels::BestIsa(), &account_);
  grown.SetPairMaps(codec::PairLayout::kInterleaved, Maps());
  const test::LayerRows rows = test::MakeRows(kShape, 777, 1);
  for (uint32_t token = 0; token < 777; ++token) {
    ASSERT_TRUE(grown.ExtendExact(1).ok());
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      grown.StoreExact(head, token, 1, &rows.keys[rows.Row(head, token)], &rows.values[rows.Row(head, token)],
                       kShape.head_dim);
    }
    ASSERT_TRUE(grown.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  }
  ExpectSame(grown, prompt);
}

TEST_P(PairPagesTest, MemoryIsWhatTheFormulaSays) {
  LayerCache cache = Filled(1000);
  ASSERT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
  const codec::PairPrecision pairs = *precision().pairs;
  const uint32_t sinks = pairs.num_sinks;
  const uint32_t pages = (1000 - sinks) / pairs.page_tokens;
  const uint32_t d = kShape.head_dim;
  const uint32_t group = pairs.value_group == 0 ? d : pairs.value_group;
  const size_t page = size_t{pairs.page_tokens} * d * 5 / 2 / 8 + 4 * d +  // 2.5 bits on the mean, scales and zeros
                      size_t{pairs.page_tokens} * (d * pairs.value_bits / 8 + 4 * (d / group));
  const size_t exact = (1000 - size_t{pages} * pairs.page_tokens) * 4 * d;
  EXPECT_EQ(cache.stored_bytes(), 16 + 3 * (d / 4 + pages * page + exact));
}

TEST_P(PairPagesTest, DamageIsRefused) {
  const LayerCache sender = Filled(500);
  const codec::LayerBlockLayout layout = sender.PlanBlock(codec::PromptTail::kEncodeAll);
  std::vector<std::byte> block(layout.total_bytes());
  sender.WriteBlock(layout, block, nullptr);
  const auto adopt = [&](const std::vector<std::byte>& bytes) {
    LayerCache receiver(kShape, precision(), kernels::BestIsa(), &account_);
    return receiver.AdoptBlock(layout, bytes).code();
  };
  EXPECT_EQ(adopt(block), StatusCode::kOk);
  std::vector<std::byte> wrong_widths = block;
  wrong_widths[codec::kPairFormatBytes] = std::byte{0x55};
  EXPECT_EQ(adopt(wrong_widths), StatusCode::kCorruption);
  std::vector<std::byte> infinite = block;
  const auto head = codec::HeadOf(layout, std::span<std::byte>(infinite), 1);
  const size_t scales = size_t{layout.pairs->bits_per_key} * page_tokens() / 8;
  head.pages[scales] = std::byte{0};
  head.pages[scales + 1] = std::byte{0x7C};
  EXPECT_EQ(adopt(infinite), StatusCode::kNumeric);
  LayerCache plain(kShape, codec::ParsePrecision("int8").value(), kernels::BestIsa(), &account_);
  EXPECT_EQ(plain.AdoptBlock(layout, block).code(), StatusCode::kMismatch);
}

// How many more tokens than fp16 a cache of a fixed size holds: one KV head of 128 channels, as memory is taken.
TEST(PairPagesMemoryTest, SixPointNineTimesTheTokensOfFp16At32KTokens) {
  constexpr codec::CacheShape kHead{1, 1, 128};
  constexpr uint32_t kTokens = 32768;
  const auto allocated = [&](const char* word) {
    MemoryAccount account;
    const codec::Precision precision = codec::ParsePrecision(word).value();
    LayerCache cache(kHead, precision, kernels::BestIsa(), &account);
    if (precision.pairs) {
      std::vector<uint8_t> widths(64, 1);
      std::fill_n(widths.begin(), 32, uint8_t{3});
      cache.SetPairMaps(codec::PairLayout::kHalfSplit,
                        std::vector{codec::WidthMap{codec::PairLayout::kHalfSplit, widths}});
    }
    for (uint32_t done = 0; done < kTokens; done += 1024) {
      AppendRows(cache, 1024, done);
      EXPECT_TRUE(cache.EncodeDue(codec::PromptTail::kByPosition, nullptr).ok());
    }
    EXPECT_LE(account.in_use_bytes(), cache.allocated_bytes());  // which counts maps, too
    EXPECT_EQ(cache.num_tokens(), kTokens);
    return static_cast<double>(cache.allocated_bytes());
  };
  const double fp16 = allocated("fp16");
  EXPECT_EQ(fp16, 4.0 * 128 * kTokens);
  EXPECT_GT(fp16 / allocated("pnmix:3/1@50%,v=2"), 6.89);
  EXPECT_GT(fp16 / allocated("pairs:2.0,v=4"), 4.82);
}

INSTANTIATE_TEST_SUITE_P(Words, PairPagesTest,
                         testing::Values("pnmix:3/1@50%", "pairs:2.0,v=4", "pairs:2.5,v=2,g=64,vg=32,sinks=0",
                                         "pairs:2.5,v=3,g=32,sinks=4", "pnmix:4/2@25%,v=8"),
                         [](const auto& instance) { return "case" + std::to_string(instance.index); });

}  // namespace
}  // namespace kvant::cache
