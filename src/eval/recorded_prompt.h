#pragma once

#include <span>
#include <vector>

#include "kvant/base/buffer.h"
#include "kvant/engine/engine.h"

namespace kvant::eval {

/// A prompt's exact keys and values, layer by layer, and what was measured of them: the prompt is computed once, and
/// encoded as often as there are precisions to compare.
class RecordedPrompt : public engine::LayerConsumer {
 public:
  explicit RecordedPrompt(engine::PromptStatistics wanted) : wanted_(wanted) {}

  engine::PromptStatistics wanted() const override { return wanted_; }
  /// Requires a cache of fp16
  Status LayerDone(uint32_t layer, cache::LayerCache& cache, const engine::LayerStatistics& statistics) override;

  /// Queries of consecutive tokens, at fp16. Shapes  queries [rows, num_q_heads, head_dim]
  void AddQueries(uint32_t layer, std::span<const float> queries);
  /// Shapes  [num_layers][tokens, num_q_heads, head_dim]; empty where none were added
  const std::vector<std::vector<Half>>& queries() const { return queries_; }

  /// As if the prompt had passed through an engine with this empty sequence and consumer.
  Status Replay(cache::Sequence& sequence, engine::LayerConsumer& consumer) const;

 private:
  struct Layer {
    codec::LayerBlockLayout layout;
    Buffer block;
    engine::LayerStatistics statistics;
  };

  engine::PromptStatistics wanted_;
  std::vector<Layer> layers_;
  std::vector<std::vector<Half>> queries_;
};

}  // namespace kvant::eval
