#include "kvant/cache/sequence.h"

#include <algorithm>
#include <numeric>

#include "kvant/base/check.h"

namespace kvant::cache {

Sequence::Sequence(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa,
                   MemoryAccount* account)
    : shape_(shape), precision_(precision) {
  KVANT_CHECK(shape.num_layers > 0, "a model has layers");
  layers_.reserve(shape.num_layers);
  for (uint32_t i = 0; i < shape.num_layers; ++i) {
    layers_.emplace_back(shape, precision, isa, account);
  }
}

Sequence::Sequence(const Sequence& other, ForkTag) : shape_(other.shape_), precision_(other.precision_) {
  layers_.reserve(other.layers_.size());
  for (const LayerCache& layer : other.layers_) {
    layers_.push_back(layer.Fork());
  }
}

Sequence Sequence::Fork() const { return {*this, ForkTag()}; }

uint32_t Sequence::ReusableTokens(uint32_t tokens) const {
  uint32_t common = std::min(tokens, num_tokens());
  for (uint32_t before = UINT32_MAX; before != common;) {  // what one layer cuts, the others are asked again
    before = common;
    for (const LayerCache& layer : layers_) {
      common = layer.ReusableTokens(common);
    }
  }
  return common;
}

void Sequence::KeepFirst(uint32_t tokens) {
  for (LayerCache& layer : layers_) {
    layer.KeepFirst(tokens);
  }
}

void Sequence::SetWindows(std::span<const uint32_t> windows) {
  KVANT_CHECK(windows.size() == layers_.size(), "a window a layer");
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].SetWindow(windows[i]);
  }
}

uint64_t Sequence::reachable_bytes_fp16() const {
  const uint64_t token_bytes =
      uint64_t{2} * shape_.num_kv_heads * codec::RowBytes(codec::TokenCodec::kFp16, shape_.head_dim);
  return std::accumulate(layers_.begin(), layers_.end(), uint64_t{0}, [&](uint64_t sum, const LayerCache& layer) {
    return sum + layer.num_reachable() * token_bytes;
  });
}

uint64_t Sequence::allocated_bytes() const {
  return std::accumulate(layers_.begin(), layers_.end(), uint64_t{0},
                         [](uint64_t sum, const LayerCache& layer) { return sum + layer.allocated_bytes(); });
}

uint64_t Sequence::stored_bytes() const {
  return std::accumulate(layers_.begin(), layers_.end(), uint64_t{0},
                         [](uint64_t sum, const LayerCache& layer) { return sum + layer.stored_bytes(); });
}

codec::BitsPerElement Sequence::bits() const {
  codec::BitsPerElement mean;
  for (const LayerCache& layer : layers_) {
    const codec::BitsPerElement bits = codec::BitsOf(layer.reachable_layout());
    mean.payload += bits.payload / shape_.num_layers;
    mean.effective += bits.effective / shape_.num_layers;
  }
  return mean;
}

Status Sequence::ExtendExact(uint32_t count) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (Status status = layers_[i].ExtendExact(count); !status.ok()) {
      for (size_t done = 0; done < i; ++done) {
        const Status undone = layers_[done].ShrinkExact(count);
        KVANT_CHECK(undone.ok(), "what was just added can be taken back");
      }
      return status;
    }
  }
  return OkStatus();
}

Status Sequence::ShrinkExact(uint32_t count) {
  for (LayerCache& layer : layers_) {
    KVANT_RETURN_IF_ERROR(layer.ShrinkExact(count));
  }
  return OkStatus();
}

Status Sequence::EncodeDue(ThreadPool* pool) {
  if (precision_.residual == codec::Precision::kEndlessResidual) {
    for (LayerCache& layer : layers_) {
      layer.FreeUnreachable();
    }
    return OkStatus();
  }
  for (LayerCache& layer : layers_) {
    KVANT_RETURN_IF_ERROR(layer.EncodeDue(codec::PromptTail::kByPosition, pool));
  }
  return OkStatus();
}

}  // namespace kvant::cache
