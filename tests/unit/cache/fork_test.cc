// Sequences that share pages, are cut back, and are kept for prompts that begin like them.
#include <gtest/gtest.h>

#include <random>

#include "kvant/cache/prefix_cache.h"
#include "support/block_reference.h"
#include "unit/cache/append_rows.h"

namespace kvant::cache {
namespace {

constexpr codec::CacheShape kShape{2, 2, 32};

std::vector<codec::WidthMap> Widths() {
  codec::WidthMap map{codec::PairLayout::kHalfSplit, std::vector<uint8_t>(kShape.head_dim / 2, 1)};
  for (size_t pair = 0; pair < map.widths.size(); ++pair) {
    map.widths[pair] = static_cast<uint8_t>(pair % 4 + 1);
  }
  return {map, map};
}

// The model's maps, for precisions that want them; pair pages need some in any case.
codec::LayerMaps MapsFor(const codec::Precision& precision) {
  codec::LayerMaps maps;
  if (precision.pairs) {
    maps.widths = Widths();
    maps.pairs =
        codec::PairBlockFormatOf(*precision.pairs, kShape.head_dim, codec::PairLayout::kHalfSplit, maps.widths);
  } else if (precision.maps_of_model) {
    const size_t size = size_t{kShape.num_kv_heads} * kShape.head_dim;
    maps.equalization =
        codec::Equalization{kShape.num_kv_heads, kShape.head_dim, std::vector<Half>(size, ToHalf(0.125F)),
                            std::vector<Half>(size, ToHalf(1.5F))};
  }
  return maps;
}

Sequence NewSequence(const char* word, MemoryAccount* account, uint32_t window = 0) {
  const codec::Precision precision = codec::ParsePrecision(word).value();
  Sequence sequence(kShape, precision, kernels::BestIsa(), account);
  for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
    sequence.layer(layer).SetWindow(window);
    if (precision.pairs || precision.maps_of_model) {
      sequence.layer(layer).UseMaps(MapsFor(precision));
    }
  }
  return sequence;
}

// Token i of a text is the number text · 10000 + i; its rows follow from that number alone.
std::vector<int32_t> Text(uint32_t count, int32_t text = 0) {
  std::vector<int32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = text * 10000 + static_cast<int32_t>(i);
  }
  return tokens;
}

void Feed(Sequence& sequence, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
      AppendRows(sequence.layer(layer), 1, static_cast<uint64_t>(token) * 2 + layer);
    }
    ASSERT_TRUE(sequence.EncodeDue(nullptr).ok());
  }
}

std::vector<std::byte> BytesOf(const Sequence& sequence) {
  std::vector<std::byte> bytes;
  for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
    std::vector<std::byte> block(sequence.layer(layer).block_layout().total_bytes());
    sequence.layer(layer).ExportBlock(block, nullptr);
    bytes.insert(bytes.end(), block.begin(), block.end());
  }
  return bytes;
}

constexpr const char* kAllWords[] = {"fp16",
                                     "int8",
                                     "int4,eq=off,sinks=0",
                                     "int8,eq=model,residual=32",
                                     "spectrum:b=.4",
                                     "spectrum:b=.3,int4=pages",
                                     "pairs:2.5",
                                     "pairs:2,map=model,g=32,sinks=4"};
// Whose codes depend on no later token.
constexpr const char* kIndependent[] = {"fp16",
                                        "int4,eq=off,sinks=0",
                                        "int8,eq=off,residual=32",
                                        "int8,eq=model",
                                        "pairs:2,map=model,g=32,sinks=4",
                                        "pnmix:3/1@50%,map=model"};

TEST(ForkTest, SharesPagesUntilOneOfThemWrites) {
  for (const char* word : kAllWords) {
    for (const uint32_t count : {3U, 100U, 333U}) {
      SCOPED_TRACE(std::string(word) + " " + std::to_string(count));
      MemoryAccount account;
      {
        std::optional<Sequence> original(NewSequence(word, &account));
        Feed(*original, Text(count));
        const std::vector<std::byte> bytes = BytesOf(*original);
        const uint64_t in_use = account.in_use_bytes();
        Sequence fork = original->Fork();
        EXPECT_EQ(account.in_use_bytes(), in_use) << "a fork has no page of its own";
        EXPECT_EQ(BytesOf(fork), bytes);

        Feed(fork, Text(200, 1));
        EXPECT_EQ(BytesOf(*original), bytes) << "what the fork wrote is in pages of its own";
        Feed(*original, Text(200, 2));
        for (const auto& [sequence, text] : {std::pair<const Sequence*, int>(&fork, 1), {&*original, 2}}) {
          Sequence alone = NewSequence(word, &account);
          Feed(alone, Text(count));
          Feed(alone, Text(200, text));
          EXPECT_EQ(BytesOf(*sequence), BytesOf(alone)) << text;
        }
        const std::vector<std::byte> forked = BytesOf(fork);
        original.reset();
        EXPECT_EQ(BytesOf(fork), forked) << "pages live as long as their last owner";
      }
      EXPECT_EQ(account.in_use_bytes(), 0U);
    }
  }
}

TEST(ForkTest, WritingNeedsRoomForTheCopyAndLeavesAllAsItWasWithoutIt) {
  MemoryAccount probe;
  Sequence full = NewSequence("fp16", &probe);
  Feed(full, Text(100));
  MemoryAccount account(probe.in_use_bytes());
  Sequence original = NewSequence("fp16", &account);
  Feed(original, Text(100));
  Sequence fork = original.Fork();
  const std::vector<std::byte> bytes = BytesOf(original);
  EXPECT_EQ(fork.ExtendExact(1).code(), StatusCode::kCapacityExceeded);
  EXPECT_EQ(BytesOf(fork), bytes);
  EXPECT_EQ(BytesOf(original), bytes);
}

TEST(ForkTest, CutBackItIsAsIfNothingHadFollowed) {
  for (const char* word : kIndependent) {
    SCOPED_TRACE(word);
    MemoryAccount account;
    Sequence whole = NewSequence(word, &account);
    Feed(whole, Text(450));
    const codec::Precision& precision = whole.precision();
    const uint32_t step = precision.is_exact() ? 1 : precision.residual;
    for (const uint32_t wanted : {0U, 2U, 5U, 33U, 90U, 131U, 160U, 300U, 449U, 450U, 999U}) {
      const uint32_t kept = whole.ReusableTokens(wanted);
      ASSERT_LE(kept, std::min(wanted, 450U));
      if (wanted >= precision.num_sinks + precision.residual + 128 || precision.is_exact()) {
        EXPECT_GT(kept + step, std::min(wanted, 450U)) << "no more than one encoding step is lost";
      }
      Sequence cut = whole.Fork();
      cut.KeepFirst(kept);
      EXPECT_EQ(cut.num_tokens(), kept);
      Sequence alone = NewSequence(word, &account);
      Feed(alone, Text(kept));
      EXPECT_EQ(cut.allocated_bytes(), alone.allocated_bytes());
      EXPECT_EQ(BytesOf(cut), BytesOf(alone)) << wanted;
      Feed(cut, Text(150, 3));
      Feed(alone, Text(150, 3));
      EXPECT_EQ(BytesOf(cut), BytesOf(alone)) << wanted;
    }
  }
}

TEST(ForkTest, CodesThatDependOnWhatFollowedCannotBeCutInto) {
  for (const char* word : {"int8", "int4", "spectrum:b=0.4", "pairs:2.5,sinks=4"}) {
    MemoryAccount account;
    Sequence whole = NewSequence(word, &account);
    Feed(whole, Text(450));
    const codec::TokenSplit split = whole.layer(0).split();
    const uint32_t exact_begin = split.num_sinks + split.num_encoded;
    EXPECT_EQ(whole.ReusableTokens(exact_begin), exact_begin) << word;
    EXPECT_EQ(whole.ReusableTokens(exact_begin - 1), 0U) << word;
  }
}

TEST(ForkTest, AWindowThatHasMovedOnCannotBeCutInto) {
  for (const char* word : {"fp16", "pairs:2,map=model,g=32,sinks=4"}) {
    MemoryAccount account;
    Sequence windowed = NewSequence(word, &account, 100);
    Feed(windowed, Text(90));
    EXPECT_GT(windowed.ReusableTokens(80), 0U) << word;
    Feed(windowed, Text(90, 1));
    EXPECT_EQ(windowed.ReusableTokens(179), 0U) << word;
    EXPECT_EQ(windowed.ReusableTokens(180), 180U) << word;
  }
}

class PrefixCacheTest : public testing::TestWithParam<const char*> {
 protected:
  Sequence Computed(std::span<const int32_t> tokens, MemoryAccount* account) {
    Sequence sequence = NewSequence(GetParam(), account);
    Feed(sequence, tokens);
    return sequence;
  }
  PrefixKey key() const { return {7, 9, GetParam()}; }
};

TEST_P(PrefixCacheTest, APromptTakesThePagesItBeginsWith) {
  MemoryAccount account;
  PrefixCache prefixes(&account);
  const std::vector<int32_t> first = Text(400);
  prefixes.Keep(key(), first, Computed(first, &account));
  ASSERT_EQ(prefixes.num_kept(), 1U);
  const uint64_t kept_bytes = account.in_use_bytes();

  std::vector<int32_t> second = Text(300);
  const std::vector<int32_t> rest = Text(100, 4);
  second.insert(second.end(), rest.begin(), rest.end());
  std::optional<Sequence> found = prefixes.Find(key(), second);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(account.in_use_bytes(), kept_bytes) << "nothing is copied";
  EXPECT_GT(found->num_tokens(), 160U);
  EXPECT_LE(found->num_tokens(), 300U);
  Feed(*found, std::span(second).subspan(found->num_tokens()));
  EXPECT_EQ(BytesOf(*found), BytesOf(Computed(second, &account)));

  EXPECT_FALSE(prefixes.Find({8, 9, GetParam()}, second).has_value()) << "another model";
  EXPECT_FALSE(prefixes.Find({7, 1, GetParam()}, second).has_value()) << "other maps";
  EXPECT_FALSE(prefixes.Find({7, 9, "int8"}, second).has_value()) << "another precision";
  EXPECT_FALSE(prefixes.Find(key(), rest).has_value()) << "another beginning";
}

TEST_P(PrefixCacheTest, TheLastTokenIsLeftToCompute) {
  MemoryAccount account;
  PrefixCache prefixes(&account);
  const std::vector<int32_t> tokens = Text(32 + 384);
  prefixes.Keep(key(), tokens, Computed(tokens, &account));
  const std::optional<Sequence> found = prefixes.Find(key(), tokens);
  ASSERT_TRUE(found.has_value());
  EXPECT_LT(found->num_tokens(), tokens.size());
}

TEST_P(PrefixCacheTest, LongerOnesTakeThePlaceOfTheirBeginnings) {
  MemoryAccount account;
  PrefixCache prefixes(&account);
  const std::vector<int32_t> tokens = Text(600);
  for (const size_t count : {300, 600, 290, 600}) {
    prefixes.Keep(key(), std::span(tokens).first(count), Computed(std::span(tokens).first(count), &account));
    EXPECT_EQ(prefixes.num_kept(), 1U);
  }
  EXPECT_GT(prefixes.Find(key(), tokens)->num_tokens(), 400U);
  const std::vector<int32_t> other = Text(300, 5);
  prefixes.Keep(key(), other, Computed(other, &account));
  EXPECT_EQ(prefixes.num_kept(), 2U);
}

TEST_P(PrefixCacheTest, TheOldestGoesWhenTheAccountIsFull) {
  MemoryAccount probe;
  uint64_t limit = 0;
  {
    PrefixCache prefixes(&probe);
    for (const int32_t text : {0, 1, 2}) {
      prefixes.Keep(key(), Text(300, text), Computed(Text(300, text), &probe));
    }
    Computed(Text(300, 3), &probe);
    limit = probe.peak_bytes() - 1;
  }
  MemoryAccount account(limit);
  {
    PrefixCache prefixes(&account);
    for (const int32_t text : {0, 1, 2}) {
      prefixes.Keep(key(), Text(300, text), Computed(Text(300, text), &account));
    }
    EXPECT_EQ(prefixes.num_kept(), 3U);
    EXPECT_TRUE(prefixes.Find(key(), Text(300, 0)).has_value());  // now text 1 is the one longest not asked for
    std::vector<Sequence> live;
    live.push_back(Computed(Text(300, 3), &account));
    EXPECT_EQ(prefixes.num_kept(), 2U);
    EXPECT_TRUE(prefixes.Find(key(), Text(300, 0)).has_value());
    EXPECT_FALSE(prefixes.Find(key(), Text(300, 1)).has_value());
    Status full;
    while (full.ok()) {
      full = live.emplace_back(NewSequence(GetParam(), &account)).ExtendExact(100);
    }
    EXPECT_EQ(full.code(), StatusCode::kCapacityExceeded) << full.message();
    EXPECT_EQ(prefixes.num_kept(), 0U) << "an error only when nothing is left to free";
  }
  EXPECT_EQ(account.in_use_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Precisions, PrefixCacheTest, testing::ValuesIn(kIndependent));

TEST(PrefixCacheKeepTest, MapsOfAPromptAreNotShared) {
  for (const char* word : {"int8", "spectrum:b=0.4", "pairs:2.5,sinks=4"}) {
    MemoryAccount account;
    PrefixCache prefixes(&account);
    Sequence sequence = NewSequence(word, &account);
    Feed(sequence, Text(300));
    prefixes.Keep({1, 1, word}, Text(300), sequence);
    EXPECT_EQ(prefixes.num_kept(), 0U) << word;
  }
}

}  // namespace
}  // namespace kvant::cache
