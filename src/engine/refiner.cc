#include "engine/refiner.h"

#include <algorithm>
#include <string>

#include "kvant/policy/raise.h"

namespace kvant::engine {

Status Refiner::Observe(const cache::Sequence& sequence, const AttentionMass& mass) {
  if (observed_steps_ == 0) {
    mass_ = mass;
  } else {
    for (size_t layer = 0; layer < mass.size(); ++layer) {
      for (size_t head = 0; head < mass[layer].size(); ++head) {
        std::vector<float>& sum = mass_[layer][head];
        std::transform(sum.begin(), sum.end(), mass[layer][head].begin(), sum.begin(), std::plus<>());
      }
    }
  }
  ++observed_steps_;
  if (observed_steps_ < kObservedSteps) {
    return OkStatus();
  }
  const Status asked = Ask(sequence);
  mass_ = {};
  return asked;
}

Status Refiner::CheckOffer(const cache::Sequence& sequence) const {
  if (!giver_->offer()) {
    return OkStatus();
  }
  if (!sequence.precision().is_progressive()) {
    return {StatusCode::kCorruption, "upgrades are offered of a prompt that is not in the progressive code"};
  }
  const std::vector<codec::TierCounts>& layers = giver_->offer()->layers;
  if (layers.size() != sequence.shape().num_layers) {
    return {StatusCode::kCorruption, "upgrades of " + std::to_string(layers.size()) + " layers are offered where " +
                                         std::to_string(sequence.shape().num_layers) + " were sent"};
  }
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    const cache::LayerCache& cache = sequence.layer(layer);
    const uint32_t sent = cache.split().num_encoded - cache.num_skipped();
    if (layers[layer].total() != sent) {
      return {StatusCode::kCorruption, "upgrades of " + std::to_string(layers[layer].total()) +
                                           " tokens are offered where layer " + std::to_string(layer) + " has " +
                                           std::to_string(sent)};
    }
  }
  return OkStatus();
}

Status Refiner::Ask(const cache::Sequence& sequence) {
  const std::vector<codec::TierCounts>& layers = giver_->offer()->layers;
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    KVANT_RETURN_IF_ERROR(AskLayer(sequence, layer, layers[layer]));
  }
  return OkStatus();
}

Status Refiner::AskLayer(const cache::Sequence& sequence, uint32_t layer, const codec::TierCounts& target) {
  const cache::LayerCache& cache = sequence.layer(layer);
  const uint32_t num_tokens = target.total();
  if (num_tokens == 0) {
    return OkStatus();
  }
  const codec::TierMap from = cache.EncodedTiers(num_tokens);
  wire::UpgradeRequest request{layer, {sequence.shape(), num_tokens, {}}, {}};
  for (uint32_t kv_head = 0; kv_head < sequence.shape().num_kv_heads; ++kv_head) {
    const std::span<const float> mass =
        std::span(mass_[layer][kv_head]).subspan(cache.split().num_sinks + cache.num_skipped(), num_tokens);
    const std::vector<codec::Tier> raised = policy::RaiseTo(target, from.OfHead(kv_head), mass);
    KVANT_ASSIGN_OR_RETURN(request.layout.moves, codec::CountMoves(from.OfHead(kv_head), raised));
    request.ids.insert(request.ids.end(), raised.begin(), raised.end());
  }
  return request.layout.moves == codec::TierMoves{} ? OkStatus() : giver_->RequestUpgrade(request);
}

Status Refiner::Adopt(cache::Sequence& sequence, ThreadPool* pool) {
  while (const std::optional<transfer::ReceivedUpgrade> upgrade = giver_->TakeUpgrade()) {
    const Status adopted = sequence.layer(upgrade->view.layer)
                               .AdoptUpgrade(upgrade->view.layout, upgrade->view.block, pool)
                               .WithContext("upgrade of layer " + std::to_string(upgrade->view.layer));
    // Where there is no room the answer goes on with what is there.
    if (!adopted.ok() && adopted.code() != StatusCode::kCapacityExceeded) {
      return adopted;
    }
  }
  return OkStatus();
}

}  // namespace kvant::engine
