#pragma once

#include <span>
#include <vector>

#include "eval/plain_head.h"
#include "kvant/engine/engine.h"
#include "kvant/eval/candidate.h"

namespace kvant::eval {

/// Takes every layer of a prompt, in a cache of fp16, through a reference and back into the same cache.
class RoundTrip : public engine::LayerConsumer {
 public:
  /// `queries`, of kReselection alone: [num_layers][tokens, num_q_heads, head_dim]
  RoundTrip(const Candidate& candidate, const engine::ModelParams& params, engine::Backend* backend,
            const std::vector<std::vector<Half>>& queries)
      : candidate_(candidate), params_(params), backend_(backend), queries_(queries) {}

  engine::PromptStatistics wanted() const override;
  Status LayerDone(uint32_t layer, cache::LayerCache& cache, const engine::LayerStatistics& statistics) override;

  /// What a cache would need that held the same, a map of every page included. Of the layers so far.
  codec::BitsPerElement bits() const { return bits_; }

 private:
  /// What the reference's keys cost beyond the precision's, and values at fp16; of one KV head.
  struct Extra {
    double payload = 0;
    double effective = 0;
  };
  Extra ReplaceKeys(const cache::LayerCache& stored, const engine::LayerStatistics& statistics, uint32_t layer,
                    uint32_t kv_head, const PlainHead& exact, PlainHead* head) const;
  void AddBits(const cache::LayerCache& stored, std::span<const Extra> extras);

  const Candidate candidate_;
  const engine::ModelParams& params_;
  engine::Backend* backend_;
  const std::vector<std::vector<Half>>& queries_;
  codec::BitsPerElement bits_;
};

}  // namespace kvant::eval
