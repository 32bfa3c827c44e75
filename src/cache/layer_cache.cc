#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"

namespace kvant::cache {
namespace {

codec::TokenPageLayout ExactLayout(uint32_t head_dim, uint32_t capacity) {
  return codec::TokenPageLayout::Make(codec::TokenCodec::kFp16, head_dim, capacity);
}

uint32_t SinkCapacity(const codec::Precision& precision) {
  return static_cast<uint32_t>(RoundUp(std::max(precision.num_sinks, 1U), codec::kTileTokens));
}

// Rows [first, first + count) of rows that lie together.
codec::ConstTokenRows PartOf(const codec::TokenPageLayout& layout, const codec::ConstTokenRows& rows, uint32_t first,
                             uint32_t count) {
  const size_t row_bytes = codec::RowCodeBytes(layout.codec, layout.head_dim);
  const auto part = [&](std::span<const Half> params) {
    return params.empty() ? params : params.subspan(first, count);
  };
  return {rows.codes.subspan(first * row_bytes, count * row_bytes), part(rows.scales), part(rows.zeros)};
}

}  // namespace

LayerCache::LayerCache(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa,
                       MemoryAccount* account)
    : shape_(shape),
      precision_(precision),
      isa_(isa),
      rows_(&kernels::RowKernelsOf(isa)),
      account_(account),
      sinks_(ExactLayout(shape.head_dim, SinkCapacity(precision)), shape.num_kv_heads, account),
      tiers_(MakeTierRuns(shape, precision, account)),
      pages_(precision.pairs ? precision.pairs->page_tokens : kPageTokens, 0, shape.num_kv_heads, account),
      residual_(ExactLayout(shape.head_dim, kPageTokens), shape.num_kv_heads, account) {
  if (precision.spectrum) {
    positions_.fill(std::vector<std::vector<int32_t>>(shape.num_kv_heads));
  }
  UseInt4Pages();
}

std::array<PageRun, codec::kNumStoredTiers> LayerCache::MakeTierRuns(const codec::CacheShape& shape,
                                                                     const codec::Precision& precision,
                                                                     MemoryAccount* account) {
  const auto make = [&](codec::Tier tier) {
    const codec::TokenCodec codec = codec::CodecOf(tier, precision.equalize);
    return PageRun(codec::TokenPageLayout::Make(codec, shape.head_dim, kPageTokens), shape.num_kv_heads, account);
  };
  return {make(codec::Tier::kFp16), make(codec::Tier::kInt8), make(codec::Tier::kInt4)};
}

codec::TierCounts LayerCache::tier_counts() const {
  codec::TierCounts counts = row_counts();
  counts.int4 += precision_.has_int4_pages() ? pages_.num_tokens() : 0;
  counts.dropped = num_dropped_;
  return counts;
}

codec::TierCounts LayerCache::row_counts() const {
  return {run(codec::Tier::kFp16).num_tokens(), run(codec::Tier::kInt8).num_tokens(),
          run(codec::Tier::kInt4).num_tokens(), 0};
}

codec::LayerBlockLayout LayerCache::block_layout() const {
  codec::LayerBlockLayout layout{shape_, precision_.codec, equalization_.has_value(), split()};
  if (precision_.spectrum) {
    layout.tiers = tier_counts();
  }
  if (precision_.has_int4_pages()) {
    layout.int4_pages = {num_int4_before_pages_, pages_.num_tokens() / codec::kInt4PageTokens};
  } else {
    layout.pairs = pair_format_;
  }
  return layout;
}

uint64_t LayerCache::allocated_bytes() const {
  const uint64_t map_bytes = equalization_ ? 2 * sizeof(Half) * equalization_->mean.size() : 0;
  uint64_t bytes = sinks_.allocated_bytes() + residual_.allocated_bytes() + pages_.allocated_bytes() + map_bytes +
                   block_layout().pair_bytes();
  for (const codec::Tier tier : codec::kStoredTiers) {
    const uint64_t position_bytes = precision_.spectrum ? sizeof(int32_t) * tier_counts().of(tier) : 0;
    bytes += run(tier).allocated_bytes() + position_bytes * shape_.num_kv_heads;
  }
  return bytes;
}

uint64_t LayerCache::stored_bytes() const { return reachable_layout().total_bytes(); }

Status LayerCache::ExtendExact(uint32_t count) {
  const uint32_t sink_room = num_encoded() + residual_.num_tokens() > 0
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
  if (from_sinks > 0 && (num_encoded() > 0 || from_sinks > sinks_.num_tokens())) {
    return {StatusCode::kOutOfRange, "cannot take back " + std::to_string(count) + " tokens: only " +
                                         std::to_string(residual_.num_tokens()) + " are still at fp16"};
  }
  residual_.Shrink(from_residual);
  sinks_.Shrink(from_sinks);
  return OkStatus();
}

void LayerCache::Clear() {
  sinks_.Shrink(sinks_.num_tokens());
  for (PageRun& run : tiers_) {
    run.Shrink(run.num_tokens());
  }
  for (auto& heads : positions_) {
    for (std::vector<int32_t>& positions : heads) {
      positions.clear();
    }
  }
  pages_.Shrink(pages_.num_tokens());
  plans_.clear();
  pair_format_.reset();
  UseInt4Pages();
  num_dropped_ = 0;
  num_skipped_ = 0;
  num_int4_before_pages_ = 0;
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
  const uint32_t residual_begin = sinks_.num_tokens() + num_encoded();
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
    if (page * run.layout().capacity < run.num_released()) {  // out of every window: no query meets what becomes of it
      std::fill_n(rows(keys).codes.data(), n * row_bytes, uint8_t{0});
      std::fill_n(values == nullptr ? nullptr : rows(values).codes.data(), values == nullptr ? 0 : n * row_bytes,
                  uint8_t{0});
      return;
    }
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

void LayerCache::StoreRows(PageRun& run, uint32_t kv_head, uint32_t first, uint32_t count,
                           const codec::ConstTokenRows& keys, const codec::ConstTokenRows& values) const {
  ForEachPiece(run.layout().capacity, first, count, [&](uint32_t page, uint32_t slot, uint32_t n, uint32_t offset) {
    rows_->store(run.layout(), run.record(page, kv_head), slot, n, PartOf(run.layout(), keys, offset, n),
                 PartOf(run.layout(), values, offset, n));
  });
}

}  // namespace kvant::cache
