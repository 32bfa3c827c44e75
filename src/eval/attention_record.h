#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/plain_head.h"
#include "kvant/base/thread_pool.h"
#include "kvant/cache/sequence.h"
#include "kvant/engine/model.h"

namespace kvant::eval {

/// Attention of the fp16 run, of a sample of the tokens after its prompt: their queries, and all keys they could meet.
/// With it, how far attention moves when the prompt's keys are stored in another way: KL(fp16 ‖ other) of the rows,
/// the same queries and the same later keys in both, so that only what was stored counts.
class AttentionRecord {
 public:
  /// Every stride-th of the tokens after the prompt, the first first.
  AttentionRecord(const engine::ModelParams& params, uint32_t prompt_tokens, uint32_t stride)
      : params_(params), prompt_tokens_(prompt_tokens), stride_(stride), queries_(params.num_layers) {}

  /// Queries of consecutive tokens, `first` counted from the prompt's end. Shapes  queries [rows, num_q_heads,
  /// head_dim]
  void AddQueries(uint32_t layer, uint32_t first, uint32_t rows, std::span<const float> queries);
  /// Requires the run's own sequence of fp16, prompt and later tokens
  void TakeKeys(const cache::Sequence& sequence);

  /// Of each sampled query the mean KL over layers and query heads; nothing where `prompt` lacks a token that a query
  /// sees, which fp16 pays attention to: the divergence is infinite then.
  /// Requires a sequence of the prompt alone, or more
  std::optional<std::vector<double>> Divergence(const cache::Sequence& prompt, ThreadPool& pool) const;

 private:
  struct HeadResult {
    bool complete = true;
    std::vector<double> sums;  ///< over the head's query heads, by query
  };
  HeadResult DivergenceOfHead(const cache::LayerCache& cache, uint32_t layer, uint32_t kv_head) const;
  double DivergenceOfQuery(const PlainHead& stored, uint32_t layer, uint32_t kv_head, uint32_t query, uint32_t first,
                           uint32_t last) const;
  uint32_t num_queries() const;

  const engine::ModelParams& params_;
  uint32_t prompt_tokens_;
  uint32_t stride_;
  std::vector<std::vector<float>> queries_;  ///< [num_layers][queries, num_q_heads, head_dim]
  std::vector<std::vector<float>> keys_;     ///< [num_layers · num_kv_heads][tokens, head_dim]
};

}  // namespace kvant::eval
