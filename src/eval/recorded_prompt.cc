#include "eval/recorded_prompt.h"

#include <algorithm>
#include <utility>

#include "kvant/base/check.h"

namespace kvant::eval {

Status RecordedPrompt::LayerDone(uint32_t layer, cache::LayerCache& cache, const engine::LayerStatistics& statistics) {
  KVANT_CHECK(layer == layers_.size(), "layers come in order");
  // A replay begins at position 0, and the encoder says itself what is out of its reach.
  const uint32_t window = cache.window();
  cache.SetWindow(0);
  const codec::LayerBlockLayout layout = cache.PlanBlock(codec::PromptTail::kEncodeAll);
  KVANT_CHECK(layout.split.num_tail == layout.split.total(), "the recorded cache is exact");
  KVANT_ASSIGN_OR_RETURN(Buffer block, Buffer::Allocate(layout.total_bytes()));
  cache.WriteBlock(layout, block.bytes(), nullptr);
  cache.SetWindow(window);
  layers_.push_back({layout, std::move(block), statistics});
  return OkStatus();
}

void RecordedPrompt::AddQueries(uint32_t layer, std::span<const float> queries) {
  queries_.resize(std::max<size_t>(queries_.size(), layer + size_t{1}));
  std::vector<Half>& rows = queries_[layer];
  rows.resize(rows.size() + queries.size());
  ToHalf(queries, std::span(rows).last(queries.size()));
}

Status RecordedPrompt::Replay(cache::Sequence& sequence, engine::LayerConsumer& consumer) const {
  for (uint32_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    const uint32_t num_tokens = layer.layout.split.num_tail;
    cache::LayerCache& cache = sequence.layer(index);
    KVANT_RETURN_IF_ERROR(cache.ExtendExact(num_tokens));
    for (uint32_t kv_head = 0; kv_head < layer.layout.shape.num_kv_heads; ++kv_head) {
      const auto head = codec::HeadOf(layer.layout, layer.block.bytes(), kv_head);
      cache.StoreExact(kv_head, 0, num_tokens, reinterpret_cast<const Half*>(head.tail_keys.data()),
                       reinterpret_cast<const Half*>(head.tail_values.data()), layer.layout.shape.head_dim);
    }
    KVANT_RETURN_IF_ERROR(consumer.LayerDone(index, cache, layer.statistics));
  }
  return OkStatus();
}

}  // namespace kvant::eval
