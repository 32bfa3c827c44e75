#include "eval/attention_record.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "eval/divergence.h"
#include "eval/plain_head.h"
#include "kvant/base/check.h"

namespace kvant::eval {
namespace {

// Partial sums side by side: compilers may not reorder a single one.
float Dot(const float* a, const float* b, uint32_t count) {
  constexpr uint32_t kLanes = 16;
  std::array<float, kLanes> sums{};
  uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane];
    }
  }
  float sum = 0;
  for (; i < count; ++i) {
    sum += a[i] * b[i];
  }
  for (const float partial : sums) {
    sum += partial;
  }
  return sum;
}

}  // namespace

void AttentionRecord::AddQueries(uint32_t layer, uint32_t first, uint32_t rows, std::span<const float> queries) {
  const size_t width = queries.size() / rows;
  for (uint32_t row = 0; row < rows; ++row) {
    if ((first + row) % stride_ == 0) {
      const std::span<const float> query = queries.subspan(row * width, width);
      queries_[layer].insert(queries_[layer].end(), query.begin(), query.end());
    }
  }
}

void AttentionRecord::TakeKeys(const cache::Sequence& sequence) {
  for (uint32_t layer = 0; layer < params_.num_layers; ++layer) {
    for (uint32_t kv_head = 0; kv_head < params_.num_kv_heads; ++kv_head) {
      keys_.push_back(LoadPlainHead(sequence.layer(layer), kv_head).keys);
    }
  }
}

uint32_t AttentionRecord::num_queries() const {
  return static_cast<uint32_t>(queries_.front().size() / (size_t{params_.num_q_heads} * params_.head_dim));
}

std::optional<std::vector<double>> AttentionRecord::Divergence(const cache::Sequence& prompt, ThreadPool& pool) const {
  std::vector<HeadResult> heads(size_t{params_.num_layers} * params_.num_kv_heads);
  pool.ParallelFor(heads.size(), [&](size_t index, int) {
    const auto layer = static_cast<uint32_t>(index) / params_.num_kv_heads;
    heads[index] = DivergenceOfHead(prompt.layer(layer), layer, static_cast<uint32_t>(index) % params_.num_kv_heads);
  });
  std::vector<double> means(num_queries());
  for (const HeadResult& head : heads) {
    if (!head.complete) {
      return std::nullopt;
    }
    for (size_t query = 0; query < means.size(); ++query) {
      means[query] += head.sums[query] / (double{1} * params_.num_layers * params_.num_q_heads);
    }
  }
  return means;
}

AttentionRecord::HeadResult AttentionRecord::DivergenceOfHead(const cache::LayerCache& cache, uint32_t layer,
                                                              uint32_t kv_head) const {
  const PlainHead stored = LoadPlainHead(cache, kv_head);
  KVANT_CHECK(stored.num_positions() >= prompt_tokens_, "the whole prompt");
  HeadResult result{true, {}};
  const auto lacks = [](codec::Tier tier) { return tier == codec::Tier::kDropped; };
  for (uint32_t query = 0; query < num_queries(); ++query) {
    const uint32_t position = prompt_tokens_ + query * stride_;
    const uint32_t window = params_.windows[layer];
    const uint32_t first = window == 0 || position < window ? 0 : position + 1 - window;
    if (std::any_of(stored.tiers.begin() + std::min(first, prompt_tokens_), stored.tiers.begin() + prompt_tokens_,
                    lacks)) {
      return {false, {}};
    }
    result.sums.push_back(DivergenceOfQuery(stored, layer, kv_head, query, first, position));
  }
  return result;
}

// Summed over the query heads that meet the KV head, each of them seeing tokens [first, last].
double AttentionRecord::DivergenceOfQuery(const PlainHead& stored, uint32_t layer, uint32_t kv_head, uint32_t query,
                                          uint32_t first, uint32_t last) const {
  const std::vector<float>& exact = keys_[size_t{layer} * params_.num_kv_heads + kv_head];
  const uint32_t group = params_.num_q_heads / params_.num_kv_heads;
  const auto cap = static_cast<double>(params_.attention_cap);
  std::vector<double> expected;
  std::vector<double> actual;
  double sum = 0;
  for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float* q = queries_[layer].data() + (size_t{query} * params_.num_q_heads + head) * params_.head_dim;
    const auto logit = [&](const float* key) {
      const auto x = static_cast<double>(params_.query_scale * Dot(q, key, params_.head_dim));
      return cap > 0 ? cap * std::tanh(x / cap) : x;
    };
    expected.clear();
    actual.clear();
    for (uint32_t token = first; token <= last; ++token) {
      expected.push_back(logit(exact.data() + size_t{token} * params_.head_dim));
      actual.push_back(token < prompt_tokens_ ? logit(stored.key(token)) : expected.back());
    }
    LogSoftmax<double>(expected);
    LogSoftmax<double>(actual);
    sum += eval::Divergence<double>(expected, actual);
  }
  return sum;
}

}  // namespace kvant::eval
