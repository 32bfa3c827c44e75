#include "cli/bench/pair_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/bench/memory.h"
#include "kvant/base/checked.h"
#include "kvant/policy/pair_map.h"

namespace kvant::cli {
namespace {

constexpr uint32_t kPagesOfHead = 4;  // different ones
constexpr uint32_t kCheckedTokens = 1000;
constexpr uint32_t kQueryRows = 64;

using Pages = std::vector<std::vector<std::byte>>;  // [kv_head · kPagesOfHead + i]

std::vector<float> Spread(uint32_t head_dim, uint32_t seed) {
  std::vector<float> spread(head_dim);
  ToFloat(RandomHalves(head_dim, 0.5F, seed), spread);
  for (float& x : spread) {
    x = std::exp(x);
  }
  return spread;
}

Result<Pages> PackPages(const std::vector<kernels::PairPlan>& plans, bool rotated, kernels::Isa isa) {
  Pages pages;
  for (uint32_t head = 0; head < plans.size(); ++head) {
    const codec::PairFormat& format = plans[head].format();
    for (uint32_t i = 0; i < kPagesOfHead; ++i) {
      PairRows rows = RandomPairRows(format.head_dim, format.page_tokens, head * kPagesOfHead + i);
      if (rotated) {
        kernels::RotateValueRows(isa, format.head_dim, rows.values.data(), format.head_dim, format.page_tokens,
                                 rows.values.data(), format.head_dim);
      }
      std::vector<std::byte> page(plans[head].layout().total_bytes);
      kernels::PackPairPage(isa, plans[head], rows.keys.data(), rows.values.data(), format.head_dim, page);
      std::vector<std::byte> expected(page.size());
      codec::SerializePairPage(
          format, plans[head].map(),
          codec::EncodePairPageRef(format, plans[head].map(), rows.keys.data(), rows.values.data(), format.head_dim),
          expected);
      if (page != expected) {
        return Status(StatusCode::kInternal, "a packed page is not the reference's");
      }
      pages.push_back(std::move(page));
    }
  }
  return pages;
}

}  // namespace

PairRows RandomPairRows(uint32_t head_dim, uint32_t page_tokens, uint32_t seed) {
  const size_t count = size_t{page_tokens} * head_dim;
  PairRows rows{RandomHalves(count, 1.0F, seed + 100), RandomHalves(count, 1.0F, seed + 200)};
  const std::vector<float> spread = Spread(head_dim, 1);
  for (size_t i = 0; i < count; ++i) {
    rows.keys[i] = ToHalf(ToFloat(rows.keys[i]) * spread[i % head_dim]);
  }
  return rows;
}

codec::WidthMap RandomWidthMap(const codec::PairPrecision& precision, uint32_t head_dim, uint32_t seed) {
  policy::PairStatistics statistics(codec::PairLayout::kHalfSplit, head_dim);
  const PairRows rows = RandomPairRows(head_dim, precision.page_tokens, seed);
  statistics.AddKeys(rows.keys.data(), precision.page_tokens, head_dim);
  statistics.AddKeyErrors(precision.key_rule, rows.keys.data(), precision.page_tokens, head_dim);
  std::vector<float> queries(size_t{kQueryRows} * head_dim);
  ToFloat(RandomHalves(queries.size(), 1.0F, seed + 300), queries);
  const std::vector<float> spread = Spread(head_dim, seed + 2);
  for (size_t i = 0; i < queries.size(); ++i) {
    queries[i] *= spread[i % head_dim];
  }
  statistics.AddQueries(queries.data(), kQueryRows, head_dim);
  return policy::MakeWidthMap(precision, statistics, seed);
}

uint32_t PairLayer::num_chunks() const { return static_cast<uint32_t>(CeilDiv(num_tokens_, cache::kChunkTokens)); }

cache::ChunkSlices PairLayer::Chunk(uint32_t kv_head, uint32_t chunk) const {
  kernels::AttendSegment segment;
  segment.pair = &(*plans_)[kv_head];
  segment.rotated_values = rotated_;
  segment.pages = pages_[kv_head];
  segment.num_tokens = num_tokens_;
  const uint32_t first = chunk * cache::kChunkTokens;
  cache::ChunkSlices slices;
  slices.slices[slices.count++] = {segment, first, std::min(cache::kChunkTokens, num_tokens_ - first)};
  return slices;
}

Result<PairLayer> PairLayers::MakeLayer(uint32_t num_tokens, const Pages& pages) const {
  const uint32_t page_tokens = plans_->front().format().page_tokens;
  const auto num_pages = static_cast<uint32_t>(CeilDiv(num_tokens, page_tokens));
  PairLayer layer;
  layer.num_tokens_ = num_tokens;
  layer.rotated_ = rotated_;
  layer.plans_ = plans_.get();
  size_t bytes = 0;
  for (const kernels::PairPlan& plan : *plans_) {
    bytes += plan.layout().total_bytes * num_pages;
  }
  KVANT_ASSIGN_OR_RETURN(layer.memory_, Buffer::Allocate(bytes));
  std::byte* at = layer.memory_.bytes().data();
  layer.pages_.resize(plans_->size());
  for (uint32_t i = 0; i < num_pages; ++i) {
    for (uint32_t head = 0; head < plans_->size(); ++head) {
      const std::vector<std::byte>& page = pages[head * kPagesOfHead + i % kPagesOfHead];
      std::memcpy(at, page.data(), page.size());
      layer.pages_[head].push_back(at);
      at += page.size();
    }
  }
  return layer;
}

Result<PairLayers> PairLayers::Make(const codec::CacheShape& shape, const codec::PairPrecision& precision,
                                    kernels::Isa isa, uint32_t num_tokens, uint64_t total_bytes, ThreadPool* pool) {
  PairLayers result;
  result.rotated_ = precision.rotate_values;
  result.plans_ = std::make_unique<std::vector<kernels::PairPlan>>();
  uint64_t layer_bytes = 0;
  for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
    const codec::PairFormat format = precision.FormatOf(shape.head_dim);
    codec::WidthMap map = RandomWidthMap(precision, shape.head_dim, head);
    KVANT_RETURN_IF_ERROR(codec::CheckPairFormat(format, map));
    result.plans_->emplace_back(format, std::move(map));
    layer_bytes += result.plans_->back().layout().total_bytes * CeilDiv(num_tokens, format.page_tokens);
  }
  KVANT_ASSIGN_OR_RETURN(const Pages pages, PackPages(*result.plans_, result.rotated_, isa));
  const size_t num_layers = total_bytes == 0 ? 1 : std::max<size_t>(2, CeilDiv(total_bytes, layer_bytes));
  std::vector<Status> outcomes(num_layers);
  result.layers_.resize(num_layers);
  pool->ParallelFor(num_layers, [&](size_t i, int) {
    Result<PairLayer> layer = result.MakeLayer(num_tokens, pages);
    outcomes[i] = layer.status();
    if (layer.ok()) {
      result.layers_[i] = std::move(*layer);
    }
  });
  for (const Status& outcome : outcomes) {
    KVANT_RETURN_IF_ERROR(outcome);
  }
  return result;
}

uint32_t PairLayers::ChunksOf(uint32_t num_tokens) const {
  return std::min(static_cast<uint32_t>(CeilDiv(num_tokens, cache::kChunkTokens)), layers_.front().num_chunks());
}

void PairLayers::Attend(AttendJob& job, uint32_t num_tokens, uint32_t round) const {
  const uint32_t num_chunks = ChunksOf(num_tokens);
  const uint32_t per_layer = layers_.front().num_chunks() / num_chunks;
  std::vector<AttendJob::Place> places;
  for (uint32_t i = 0; i < AttentionLayers::PlacesOf(num_tokens); ++i) {
    const uint32_t at = round * AttentionLayers::PlacesOf(num_tokens) + i;
    places.push_back({nullptr, at % per_layer * num_chunks, &layers_[at / per_layer % layers_.size()]});
  }
  job.Run(places, num_chunks);
}

AttentionLayers::Load PairLayers::LoadOf(uint32_t num_tokens) const {
  AttentionLayers::Load load;
  for (uint32_t chunk = 0; chunk < ChunksOf(num_tokens); ++chunk) {
    load.tokens += layers_.front().Chunk(0, chunk).slices[0].num_tokens;
  }
  for (const kernels::PairPlan& plan : *plans_) {
    load.bytes += CeilDiv(load.tokens, plan.format().page_tokens) * plan.layout().total_bytes;
  }
  return load;
}

Status CheckPairAttention(const codec::CacheShape& shape, const codec::PairPrecision& precision, kernels::Isa isa,
                          AttendJob& job, ThreadPool* pool) {
  KVANT_ASSIGN_OR_RETURN(const PairLayers layers, PairLayers::Make(shape, precision, isa, kCheckedTokens, 0, pool));
  const PairLayer& layer = layers.layer(0);
  const AttendJob::Place place{nullptr, 0, &layer};
  job.Run({&place, 1}, layer.num_chunks());
  double largest = 0;
  double worst = 0;
  size_t at = 0;
  for (uint32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    std::vector<kernels::AttendSlice> slices;
    for (uint32_t chunk = 0; chunk < layer.num_chunks(); ++chunk) {
      slices.push_back(layer.Chunk(kv_head, chunk).slices[0]);
    }
    const kernels::AttendQueries queries = job.QueriesOf(kv_head);
    std::vector<float> expected(size_t{queries.num_rows()} * queries.head_dim);
    kernels::AttendRef(queries, slices, expected);
    for (const float value : expected) {
      largest = std::max<double>(largest, std::fabs(value));
      worst = std::max<double>(worst, std::fabs(value - job.output()[at++]));
    }
  }
  constexpr double kAllowed = 1e-2;  // queries twice as wide as kernels/attend.h's bound is for, keys of uneven spread
  if (!(worst <= kAllowed * largest)) {
    return {StatusCode::kInternal,
            fmt::format("{}: attention is off by {:.1e} of the largest output, {:.0e} are allowed",
                        codec::PairPrecisionWord(precision), worst / largest, kAllowed)};
  }
  return OkStatus();
}

}  // namespace kvant::cli
