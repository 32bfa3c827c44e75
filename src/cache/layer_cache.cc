#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"
#include "kvant/kernels/equalize.h"

namespace kvant::cache {
namespace {

constexpr uint32_t kPageTokens = 128;  // of encoded and residual pages
constexpr uint32_t kBatchTokens = 128;  // rows handled at once: they stay in L1 and L2

codec::TokenPageLayout ExactLayout(uint32_t head_dim, uint32_t capacity) {
  return codec::TokenPageLayout::Make(codec::TokenCodec::kFp16, head_dim, capacity);
}

uint32_t SinkCapacity(const codec::Precision& precision) {
  return static_cast<uint32_t>(RoundUp(std::max(precision.num_sinks, 1U), codec::kTileTokens));
}

// Encoded rows of one batch in memory of their own.
struct RowBuffer {
  RowBuffer(codec::TokenCodec codec, uint32_t head_dim, uint32_t count)
      : codes(codec::RowCodeBytes(codec, head_dim) * count),
        scales(codec::HasScale(codec) ? count : 0),
        zeros(codec::HasZero(codec) ? count : 0) {}

  codec::TokenRows rows() { return {codes, scales, zeros}; }
  codec::ConstTokenRows const_rows() const { return {codes, scales, zeros}; }

  std::vector<uint8_t> codes;
  std::vector<Half> scales;
  std::vector<Half> zeros;
};

}  // namespace

LayerCache::LayerCache(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa,
                       MemoryAccount* account)
    : shape_(shape),
      precision_(precision),
      isa_(isa),
      rows_(&kernels::RowKernelsOf(isa)),
      account_(account),
      sinks_(ExactLayout(shape.head_dim, SinkCapacity(precision)), shape.num_kv_heads, account),
      encoded_(codec::TokenPageLayout::Make(precision.codec, shape.head_dim, kPageTokens), shape.num_kv_heads, account),
      residual_(ExactLayout(shape.head_dim, kPageTokens), shape.num_kv_heads, account) {}

uint64_t LayerCache::allocated_bytes() const {
  const uint64_t map_bytes = equalization_ ? 2 * sizeof(Half) * equalization_->mean.size() : 0;
  return sinks_.allocated_bytes() + encoded_.allocated_bytes() + residual_.allocated_bytes() + map_bytes;
}

uint64_t LayerCache::stored_bytes() const {
  return codec::LayerBlockLayout{shape_, precision_.codec, equalization_.has_value(), split()}.total_bytes();
}

Status LayerCache::ExtendExact(uint32_t count) {
  const uint32_t sink_room = encoded_.num_tokens() + residual_.num_tokens() > 0
                                 ? 0
                                 : precision_.num_sinks - std::min(precision_.num_sinks, sinks_.num_tokens());
  const uint32_t to_sinks = std::min(count, sink_room);
  KVANT_RETURN_IF_ERROR(sinks_.Extend(to_sinks));
  Status status = residual_.Extend(count - to_sinks);
  if (!status.ok()) {
    sinks_.Shrink(to_sinks);
  }
  return status;
}

Status LayerCache::ShrinkExact(uint32_t count) {
  const uint32_t from_residual = std::min(count, residual_.num_tokens());
  const uint32_t from_sinks = count - from_residual;
  if (from_sinks > 0 && (encoded_.num_tokens() > 0 || from_sinks > sinks_.num_tokens())) {
    return {StatusCode::kOutOfRange, "cannot take back " + std::to_string(count) + " tokens: only " +
                                         std::to_string(residual_.num_tokens()) + " are still at fp16"};
  }
  residual_.Shrink(from_residual);
  sinks_.Shrink(from_sinks);
  return OkStatus();
}

void LayerCache::Clear() {
  sinks_.Shrink(sinks_.num_tokens());
  encoded_.Shrink(encoded_.num_tokens());
  residual_.Shrink(residual_.num_tokens());
  equalization_.reset();
}

void LayerCache::StoreExact(uint32_t kv_head, uint32_t first, uint32_t count, const Half* keys, const Half* values,
                            size_t stride) {
  const uint32_t in_sinks = first < sinks_.num_tokens() ? std::min(count, sinks_.num_tokens() - first) : 0;
  StoreRun(sinks_, kv_head, first, in_sinks, keys, values, stride);
  if (in_sinks == count) {
    return;
  }
  const uint32_t residual_begin = sinks_.num_tokens() + encoded_.num_tokens();
  KVANT_CHECK(first + in_sinks >= residual_begin, "exact rows go where tokens are still at fp16");
  StoreRun(residual_, kv_head, first + in_sinks - residual_begin, count - in_sinks, keys + in_sinks * stride,
           values + in_sinks * stride, stride);
}

void LayerCache::StoreRun(PageRun& run, uint32_t kv_head, uint32_t first, uint32_t count, const Half* keys,
                          const Half* values, size_t stride) {
  const size_t row_bytes = codec::RowCodeBytes(codec::TokenCodec::kFp16, shape_.head_dim);
  const bool dense = stride == shape_.head_dim;
  const auto rows = [&](const Half* at, uint32_t row, uint32_t n) {
    return codec::ConstTokenRows{{reinterpret_cast<const uint8_t*>(at + row * stride), n * row_bytes}, {}, {}};
  };
  ForEachPiece(run.layout().capacity, first, count, [&](uint32_t page, uint32_t slot, uint32_t n, uint32_t offset) {
    const uint32_t step = dense ? n : 1;
    for (uint32_t i = 0; i < n; i += step) {
      rows_->store(run.layout(), run.record(page, kv_head), slot + i, step, rows(keys, offset + i, step),
                   rows(values, offset + i, step));
    }
  });
}

void LayerCache::LoadRun(const PageRun& run, uint32_t kv_head, uint32_t first, uint32_t count, Half* keys,
                         Half* values) const {
  const size_t row_bytes = codec::RowCodeBytes(codec::TokenCodec::kFp16, shape_.head_dim);
  ForEachPiece(run.layout().capacity, first, count, [&](uint32_t page, uint32_t slot, uint32_t n, uint32_t offset) {
    const auto rows = [&](Half* at) {
      auto* bytes = reinterpret_cast<uint8_t*>(at + size_t{offset} * shape_.head_dim);
      return codec::TokenRows{{bytes, n * row_bytes}, {}, {}};
    };
    rows_->load(run.layout(), run.record(page, kv_head), slot, n, rows(keys),
                values == nullptr ? codec::TokenRows{} : rows(values));
  });
}

void LayerCache::ForEachHead(ThreadPool* pool, const std::function<void(uint32_t)>& body) const {
  if (pool != nullptr) {
    pool->ParallelFor(shape_.num_kv_heads, [&](size_t kv_head, int) { body(static_cast<uint32_t>(kv_head)); });
    return;
  }
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    body(kv_head);
  }
}

codec::Equalization LayerCache::MeasureEqualization(ThreadPool* pool) const {
  codec::EqualizationBuilder builder(shape_.num_kv_heads, shape_.head_dim);
  const uint32_t count = residual_.num_tokens();
  const kernels::EqualizeKernels& kernels = kernels::EqualizeKernelsOf(isa_);
  ForEachHead(pool, [&](uint32_t kv_head) {
    std::vector<Half> keys(size_t{kBatchTokens} * shape_.head_dim);
    const codec::KeyStats stats = builder.stats(kv_head);
    for (uint32_t done = 0; done < count; done += kBatchTokens) {
      const uint32_t batch = std::min(kBatchTokens, count - done);
      LoadRun(residual_, kv_head, done, batch, keys.data(), /*values=*/nullptr);
      kernels.add_keys(shape_.head_dim, keys.data(), batch, stats.sums.data(), stats.lows.data(), stats.highs.data());
    }
  });
  return builder.Finish(count);
}

void LayerCache::EncodeRows(const codec::Equalization* map, codec::TokenCodec codec, uint32_t kv_head, uint32_t first,
                            uint32_t count, codec::TokenRows keys, codec::TokenRows values) const {
  const uint32_t head_dim = shape_.head_dim;
  std::vector<Half> exact_keys(size_t{count} * head_dim);
  std::vector<Half> exact_values(exact_keys.size());
  LoadRun(residual_, kv_head, first, count, exact_keys.data(), exact_values.data());
  if (map != nullptr) {
    kernels::EqualizeKernelsOf(isa_).equalize(head_dim, map->MeanOf(kv_head).data(), map->ScaleOf(kv_head).data(),
                                              exact_keys.data(), count);
  }
  rows_->encode(codec, head_dim, exact_keys.data(), head_dim, count, keys);
  rows_->encode(codec, head_dim, exact_values.data(), head_dim, count, values);
}

Status LayerCache::EncodeDue(codec::PromptTail tail, ThreadPool* pool) {
  const uint32_t target = codec::SplitPrompt(precision_, num_tokens(), tail).num_encoded;
  if (target <= encoded_.num_tokens()) {
    return OkStatus();
  }
  if (precision_.equalize && !equalization_) {
    equalization_ = MeasureEqualization(pool);
  }
  return MoveToEncoded(target - encoded_.num_tokens(), pool);
}

Status LayerCache::MoveToEncoded(uint32_t count, ThreadPool* pool) {
  const codec::Equalization* map = equalization_ ? &*equalization_ : nullptr;
  const uint32_t first_slot = encoded_.num_tokens();
  KVANT_RETURN_IF_ERROR(encoded_.Extend(count));
  ForEachHead(pool, [&](uint32_t kv_head) {
    ForEachPiece(kPageTokens, first_slot, count, [&](uint32_t page, uint32_t slot, uint32_t n, uint32_t offset) {
      RowBuffer keys(precision_.codec, shape_.head_dim, n);
      RowBuffer values(precision_.codec, shape_.head_dim, n);
      EncodeRows(map, precision_.codec, kv_head, offset, n, keys.rows(), values.rows());
      rows_->store(encoded_.layout(), encoded_.record(page, kv_head), slot, n, keys.const_rows(), values.const_rows());
    });
  });
  return DropResidualFront(count);
}

Status LayerCache::DropResidualFront(uint32_t count) {
  const uint32_t rest = residual_.num_tokens() - count;
  PageRun kept(residual_.layout(), shape_.num_kv_heads, account_);
  KVANT_RETURN_IF_ERROR(kept.Extend(rest));
  std::vector<Half> keys(size_t{kBatchTokens} * shape_.head_dim);
  std::vector<Half> values(keys.size());
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    for (uint32_t done = 0; done < rest; done += kBatchTokens) {
      const uint32_t batch = std::min(kBatchTokens, rest - done);
      LoadRun(residual_, kv_head, count + done, batch, keys.data(), values.data());
      StoreRun(kept, kv_head, done, batch, keys.data(), values.data(), shape_.head_dim);
    }
  }
  residual_ = std::move(kept);
  return OkStatus();
}

}  // namespace kvant::cache
