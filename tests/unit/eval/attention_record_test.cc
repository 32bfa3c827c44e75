#include "eval/attention_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kvant/kernels/cpu.h"

namespace kvant::eval {
namespace {

constexpr uint32_t kPrompt = 40;
constexpr uint32_t kLater = 9;
constexpr uint32_t kStride = 4;  // queries at positions 40, 44, 48
constexpr uint32_t kQHeads = 4;
constexpr codec::CacheShape kShape{2, 2, 32};

engine::ModelParams Params(uint32_t window, float cap) {
  engine::ModelParams params;
  params.num_layers = kShape.num_layers;
  params.num_q_heads = kQHeads;
  params.num_kv_heads = kShape.num_kv_heads;
  params.head_dim = kShape.head_dim;
  params.query_scale = 0.3F;
  params.attention_cap = cap;
  params.windows = {0, window};
  return params;
}

std::vector<Half> RandomRows(size_t count, uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> rows(count * kShape.head_dim);
  for (Half& x : rows) x = ToHalf(spread * normal(random));
  return rows;
}

// Keys of every layer and head, [tokens][head_dim]; some of the prompt's changed.
std::vector<std::vector<Half>> Keys(uint32_t tokens, bool changed) {
  std::vector<std::vector<Half>> keys;
  for (uint32_t i = 0; i < kShape.num_layers * kShape.num_kv_heads; ++i) {
    keys.push_back(RandomRows(tokens, i, 1.0F));
    const std::vector<Half> noise = RandomRows(tokens, 100 + i, 0.3F);
    for (size_t at = 0; changed && at < keys.back().size(); ++at) {
      keys.back()[at] = ToHalf(ToFloat(keys.back()[at]) + ToFloat(noise[at]));
    }
  }
  return keys;
}

cache::Sequence SequenceOf(const std::vector<std::vector<Half>>& keys, uint32_t tokens, const char* word,
                           cache::MemoryAccount* account) {
  cache::Sequence sequence(kShape, codec::ParsePrecision(word).value(), kernels::Isa::kScalar, account);
  EXPECT_TRUE(sequence.ExtendExact(tokens).ok());
  for (uint32_t i = 0; i < keys.size(); ++i) {
    sequence.layer(i / kShape.num_kv_heads)
        .StoreExact(i % kShape.num_kv_heads, 0, tokens, keys[i].data(), keys[i].data(), kShape.head_dim);
  }
  return sequence;
}

std::vector<float> Queries(uint32_t layer) {
  std::mt19937 random(50 + layer);
  std::normal_distribution<float> normal;
  std::vector<float> queries(size_t{kLater} * kQHeads * kShape.head_dim);
  for (float& x : queries) x = normal(random);
  return queries;
}

AttentionRecord RecordOf(const engine::ModelParams& params, cache::MemoryAccount* account) {
  AttentionRecord record(params, kPrompt, kStride);
  for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
    const std::vector<float> queries = Queries(layer);  // in two runs, cut where the stride is not
    const size_t width = size_t{kQHeads} * kShape.head_dim;
    record.AddQueries(layer, 0, 3, std::span(queries).first(3 * width));
    record.AddQueries(layer, 3, kLater - 3, std::span(queries).subspan(3 * width));
  }
  record.TakeKeys(SequenceOf(Keys(kPrompt + kLater, false), kPrompt + kLater, "fp16", account));
  return record;
}

// One row's probabilities by the definition.
std::vector<double> Softmax(const engine::ModelParams& params, const float* q, const std::vector<Half>& prompt_keys,
                            const std::vector<Half>& later_keys, int position, int window) {
  std::vector<double> row;
  double sum = 0;
  for (int token = 0; token <= position; ++token) {
    const std::vector<Half>& keys = token < static_cast<int>(kPrompt) ? prompt_keys : later_keys;
    double logit = 0;
    for (size_t c = 0; c < kShape.head_dim; ++c) {
      logit += static_cast<double>(q[c]) *
               static_cast<double>(ToFloat(keys[static_cast<size_t>(token) * kShape.head_dim + c]));
    }
    logit *= static_cast<double>(params.query_scale);
    if (params.attention_cap > 0) {
      const auto cap = static_cast<double>(params.attention_cap);
      logit = cap * std::tanh(logit / cap);
    }
    const bool seen = window == 0 || position - token < window;
    row.push_back(seen ? std::exp(logit) : 0.0);
    sum += row.back();
  }
  for (double& p : row) p /= sum;
  return row;
}

double BruteForce(const engine::ModelParams& params, int position) {
  const auto exact = Keys(kPrompt + kLater, false);
  const auto changed = Keys(kPrompt, true);
  double sum = 0;
  for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
    const std::vector<float> queries = Queries(layer);
    for (uint32_t head = 0; head < kQHeads; ++head) {
      const size_t at = layer * kShape.num_kv_heads + head / 2;
      const float* q = queries.data() + ((static_cast<size_t>(position) - kPrompt) * kQHeads + head) * kShape.head_dim;
      const int window = static_cast<int>(params.windows[layer]);
      const auto expected = Softmax(params, q, exact[at], exact[at], position, window);
      const auto actual = Softmax(params, q, changed[at], exact[at], position, window);
      for (size_t i = 0; i < expected.size(); ++i) {
        if (expected[i] > 0) sum += expected[i] * std::log(expected[i] / actual[i]);
      }
    }
  }
  return sum / (kShape.num_layers * kQHeads);
}

TEST(AttentionRecord, IsTheDivergenceOfRowsByTheirDefinition) {
  ThreadPool pool(2);
  for (const auto& [window, cap] : {std::pair(0U, 0.0F), std::pair(11U, 0.0F), std::pair(0U, 2.0F)}) {
    const engine::ModelParams params = Params(window, cap);
    cache::MemoryAccount account;
    const AttentionRecord record = RecordOf(params, &account);
    const auto got = record.Divergence(SequenceOf(Keys(kPrompt, true), kPrompt, "fp16", &account), pool);
    ASSERT_TRUE(got.has_value());
    ASSERT_EQ(got->size(), 3U);
    for (int query = 0; query < 3; ++query) {
      const double expected = BruteForce(params, static_cast<int>(kPrompt) + 4 * query);
      EXPECT_GT(expected, 0.01);
      EXPECT_NEAR((*got)[static_cast<size_t>(query)], expected, 1e-5 * expected) << window << " " << cap;
    }
  }
}

TEST(AttentionRecord, OfTheSameKeysIsNothingAtAll) {
  ThreadPool pool(2);
  const engine::ModelParams params = Params(11, 0.0F);
  cache::MemoryAccount account;
  const AttentionRecord record = RecordOf(params, &account);
  const auto got = record.Divergence(SequenceOf(Keys(kPrompt, false), kPrompt, "fp16", &account), pool);
  EXPECT_EQ(got, (std::vector<double>{0, 0, 0}));
}

TEST(AttentionRecord, ATokenThatIsNowhereLeavesNoNumber) {
  ThreadPool pool(2);
  const engine::ModelParams params = Params(0, 0.0F);
  cache::MemoryAccount account;
  const AttentionRecord record = RecordOf(params, &account);
  cache::Sequence sequence = SequenceOf(Keys(kPrompt, false), kPrompt, "sws:0.5,sinks=0,eq=off", &account);
  for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
    codec::TierMap tiers{{kPrompt - 1, 0, 0, 1}, std::vector<codec::Tier>(2 * kPrompt, codec::Tier::kFp16)};
    tiers.ids[7] = tiers.ids[kPrompt + 8] = codec::Tier::kDropped;
    ASSERT_TRUE(sequence.layer(layer).EncodeDue(codec::PromptTail::kEncodeAll, nullptr, &tiers).ok());
  }
  EXPECT_FALSE(record.Divergence(sequence, pool).has_value());
}

}  // namespace
}  // namespace kvant::eval
