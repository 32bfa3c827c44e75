#pragma once

#include <cstdint>
#include <vector>

#include "kvant/base/thread_pool.h"
#include "kvant/engine/engine.h"

namespace kvant::engine {

/// What has to be measured of a prompt before it can be encoded at a precision.
PromptStatistics StatisticsFor(const codec::Precision& precision);

/// A consumer that encodes each layer, or sends it encoded: gives a spectrum's tokens to tiers by what was measured of
/// the layer. With scope=model it waits for the last layer, so the whole prompt stays at fp16 until then.
class PromptEncoder : public LayerConsumer {
 public:
  PromptEncoder(const codec::Precision& precision, codec::PromptTail tail, ThreadPool* pool)
      : precision_(precision), tail_(tail), pool_(pool) {}

  PromptStatistics wanted() const override { return StatisticsFor(precision_); }
  Status LayerDone(uint32_t layer, cache::LayerCache& cache, const LayerStatistics& statistics) override;

 protected:
  /// Do with the layer what is to be done. `tiers` is null where the precision is no spectrum, or nothing is due.
  virtual Status Take(uint32_t layer, cache::LayerCache& cache, const codec::TierMap* tiers) = 0;
  /// The precision's spectrum, with the budget of this layer.
  virtual Result<codec::Spectrum> SpectrumOf(uint32_t, const cache::LayerCache&) { return *precision_.spectrum; }

  const codec::Precision precision_;
  const codec::PromptTail tail_;
  ThreadPool* const pool_;

 private:
  /// What the layer's tokens that are due are ranked by, one row a KV head.
  std::vector<std::vector<float>> ImportanceOf(const cache::LayerCache& cache, const LayerStatistics& statistics) const;
  Status TakeWithTiers(uint32_t layer, cache::LayerCache& cache, const std::vector<std::vector<float>>& importance);
  Status TakeAll();

  struct Waiting {
    cache::LayerCache* cache;
    std::vector<float> importance;
  };
  std::vector<Waiting> waiting_;  ///< with scope=model
};

/// Encode in place what is due.
class EncodeInPlace : public PromptEncoder {
 public:
  using PromptEncoder::PromptEncoder;

 protected:
  Status Take(uint32_t, cache::LayerCache& cache, const codec::TierMap* tiers) override {
    return cache.EncodeDue(tail_, pool_, tiers);
  }
};

}  // namespace kvant::engine
