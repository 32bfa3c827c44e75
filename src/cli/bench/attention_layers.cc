#include "cli/bench/attention_layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cli/bench/memory.h"
#include "cli/bench/pair_rows.h"
#include "kvant/base/buffer.h"
#include "kvant/base/checked.h"
#include "kvant/policy/tier_map.h"

namespace kvant::cli {
namespace {

constexpr uint32_t kBatchRows = 1024;  // of random keys and values; they repeat, the memory does not
constexpr uint32_t kCheckedTokens = 700;
constexpr uint32_t kTokensPerCall = 1U << 15;

/// The tiers of a layer's tokens that are due, by an importance drawn at random; nothing without a spectrum.
Result<std::optional<codec::TierMap>> RandomTiers(const cache::LayerCache& layer, const codec::Precision& precision,
                                                  codec::PromptTail tail) {
  const uint32_t due = layer.num_due(tail);
  if (!precision.spectrum || due == 0) {
    return std::optional<codec::TierMap>();
  }
  const uint32_t heads = layer.shape().num_kv_heads;
  std::vector<std::vector<float>> importance(heads);
  for (uint32_t head = 0; head < heads; ++head) {
    for (const Half value : RandomHalves(due, 1.0F, head + 1)) {
      importance[head].push_back(std::fabs(ToFloat(value)));
    }
  }
  const policy::TierRequest request{heads, layer.split().num_sinks, due, importance};
  KVANT_ASSIGN_OR_RETURN(codec::TierMap tiers, policy::MakeTierMap(*precision.spectrum, request));
  return std::optional(std::move(tiers));
}

/// How many bits the pairs of each KV head get; nothing without pair pages.
Result<std::vector<codec::WidthMap>> RandomWidthMaps(const codec::CacheShape& shape,
                                                     const codec::Precision& precision) {
  std::vector<codec::WidthMap> maps;
  for (uint32_t head = 0; precision.pairs && head < shape.num_kv_heads; ++head) {
    KVANT_ASSIGN_OR_RETURN(codec::WidthMap map, RandomWidthMap(*precision.pairs, shape.head_dim, head));
    maps.push_back(std::move(map));
  }
  return maps;
}

PairRows RandomRows(const codec::CacheShape& shape, const codec::Precision& precision) {
  if (precision.pairs) {
    return RandomPairRows(shape.head_dim, kBatchRows, 0);
  }
  const std::vector<Half> values = RandomHalves(size_t{2} * kBatchRows * shape.head_dim, 1.0F, 3);
  const auto half = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  return {{values.begin(), half}, {half, values.end()}};
}

const codec::TierMap* PointerTo(const std::optional<codec::TierMap>& tiers) { return tiers ? &*tiers : nullptr; }

/// A small layer, encoded as after a prompt.
Result<cache::LayerCache> CheckedLayer(const codec::CacheShape& shape, const codec::Precision& precision,
                                       kernels::Isa isa, cache::MemoryAccount* account, ThreadPool* pool) {
  KVANT_ASSIGN_OR_RETURN(cache::LayerCache layer, RandomLayer(shape, precision, isa, kCheckedTokens, account, pool));
  KVANT_ASSIGN_OR_RETURN(const auto tiers, RandomTiers(layer, precision, codec::PromptTail::kByPosition));
  KVANT_RETURN_IF_ERROR(layer.EncodeDue(codec::PromptTail::kByPosition, pool, PointerTo(tiers)));
  return layer;
}

std::vector<float> Reference(const cache::LayerCache& layer, const AttendJob& job, uint32_t kv_head) {
  std::vector<kernels::AttendSlice> slices;
  for (uint32_t chunk = 0; chunk < layer.num_chunks(); ++chunk) {
    const cache::ChunkSlices part = layer.Chunk(kv_head, chunk);
    slices.insert(slices.end(), part.span().begin(), part.span().end());
  }
  const kernels::AttendQueries queries = job.QueriesOf(kv_head);
  std::vector<float> output(size_t{queries.num_rows()} * queries.head_dim);
  kernels::AttendRef(queries, slices, output);
  return output;
}

/// What is stored of one KV head's tokens; of pair pages whole ones.
uint64_t BytesOf(const kernels::AttendSlice& slice) {
  if (const kernels::PairPlan* pair = slice.segment.pair) {
    return CeilDiv(slice.num_tokens, pair->format().page_tokens) * pair->layout().total_bytes;
  }
  const codec::TokenPageLayout& layout = *slice.segment.layout;
  return uint64_t{slice.num_tokens} * 2 * codec::RowBytes(layout.codec, layout.head_dim);
}

/// Scalar code packs by the codec's reference.
Status CheckPages(const cache::LayerCache& layer, ThreadPool* pool) {
  cache::MemoryAccount account;
  KVANT_ASSIGN_OR_RETURN(const cache::LayerCache reference,
                         CheckedLayer(layer.shape(), layer.precision(), kernels::Isa::kScalar, &account, pool));
  std::vector<std::byte> packed(layer.block_layout().total_bytes());
  std::vector<std::byte> expected(reference.block_layout().total_bytes());
  layer.ExportBlock(packed, pool);
  reference.ExportBlock(expected, pool);
  return packed == expected ? OkStatus() : Status(StatusCode::kInternal, "a packed page is not the reference's");
}

/// Of the largest output (kernels/attend.h). Of pairs the bound there is for queries half as wide and keys of even
/// spread.
double AllowedError(const codec::Precision& precision) {
  return precision.pairs ? 1e-2 : precision.is_exact() ? 1e-5 : 3e-3;
}

}  // namespace

Result<cache::LayerCache> RandomLayer(const codec::CacheShape& shape, const codec::Precision& precision,
                                      kernels::Isa isa, uint32_t num_tokens, cache::MemoryAccount* account,
                                      ThreadPool* pool) {
  KVANT_RETURN_IF_ERROR(codec::CheckPrecision(precision, shape.head_dim));
  KVANT_ASSIGN_OR_RETURN(const std::vector<codec::WidthMap> maps, RandomWidthMaps(shape, precision));
  const PairRows rows = RandomRows(shape, precision);
  cache::LayerCache layer(shape, precision, isa, account);
  if (precision.pairs) {
    layer.SetPairMaps(codec::PairLayout::kHalfSplit, maps);
  }
  KVANT_RETURN_IF_ERROR(layer.ExtendExact(num_tokens));
  pool->ParallelFor(shape.num_kv_heads, [&](size_t kv_head, int) {
    for (uint32_t first = 0; first < num_tokens; first += kBatchRows) {
      layer.StoreExact(static_cast<uint32_t>(kv_head), first, std::min(kBatchRows, num_tokens - first),
                       rows.keys.data(), rows.values.data(), shape.head_dim);
    }
  });
  return layer;
}

Result<AttentionLayers> AttentionLayers::Make(const codec::CacheShape& shape, const codec::Precision& precision,
                                              kernels::Isa isa, uint32_t num_tokens, uint64_t total_bytes,
                                              cache::MemoryAccount* account, ThreadPool* pool) {
  codec::LayerBlockLayout layout;
  Buffer block;
  {
    KVANT_ASSIGN_OR_RETURN(cache::LayerCache exact, RandomLayer(shape, precision, isa, num_tokens, account, pool));
    KVANT_ASSIGN_OR_RETURN(const auto tiers, RandomTiers(exact, precision, codec::PromptTail::kEncodeAll));
    layout = exact.PlanBlock(codec::PromptTail::kEncodeAll, PointerTo(tiers));
    KVANT_ASSIGN_OR_RETURN(block, Buffer::Allocate(layout.total_bytes()));
    exact.WriteBlock(layout, block.bytes(), pool, PointerTo(tiers));
  }
  AttentionLayers result(precision);
  result.num_kv_heads_ = shape.num_kv_heads;
  const size_t num_layers = std::max<size_t>(2, CeilDiv(total_bytes, layout.total_bytes()));
  for (size_t i = 0; i < num_layers; ++i) {
    result.layers_.emplace_back(shape, precision, isa, account);
  }
  std::vector<Status> outcomes(num_layers);
  pool->ParallelFor(num_layers,
                    [&](size_t i, int) { outcomes[i] = result.layers_[i].AdoptBlock(layout, block.bytes()); });
  for (const Status& outcome : outcomes) {
    KVANT_RETURN_IF_ERROR(outcome);
  }
  return result;
}

uint32_t AttentionLayers::places() const { return std::max(kTokensPerCall / layers_.front().num_tokens(), 1U); }

void AttentionLayers::Attend(AttendJob& job, uint32_t round) const {
  std::vector<AttendJob::Place> places_of_round;
  for (uint32_t i = 0; i < places(); ++i) {
    places_of_round.push_back({&layers_[(size_t{round} * places() + i) % layers_.size()], 0});
  }
  job.Run(places_of_round, layers_.front().num_chunks());
}

AttentionLayers::Load AttentionLayers::load() const {
  Load load;
  for (uint32_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    for (uint32_t chunk = 0; chunk < layers_.front().num_chunks(); ++chunk) {
      const cache::ChunkSlices slices = layers_.front().Chunk(kv_head, chunk);
      for (const kernels::AttendSlice& slice : slices.span()) {
        load.tokens += kv_head == 0 ? slice.num_tokens : 0;
        load.bytes += BytesOf(slice);
      }
    }
  }
  return load;
}

Status CheckAttention(const codec::CacheShape& shape, const codec::Precision& precision, kernels::Isa isa,
                      AttendJob& job, ThreadPool* pool) {
  cache::MemoryAccount account;
  KVANT_ASSIGN_OR_RETURN(const cache::LayerCache layer, CheckedLayer(shape, precision, isa, &account, pool));
  const AttendJob::Place place{&layer, 0};
  job.Run({&place, 1}, layer.num_chunks());
  double largest = 0;
  double worst = 0;
  size_t at = 0;
  for (uint32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    for (const float expected : Reference(layer, job, kv_head)) {
      largest = std::max<double>(largest, std::fabs(expected));
      worst = std::max<double>(worst, std::fabs(expected - job.output()[at++]));
    }
  }
  const double allowed = AllowedError(precision);
  if (!(worst <= allowed * largest)) {
    return {StatusCode::kInternal,
            fmt::format("{}: attention is off by {:.1e} of the largest output, {:.0e} are allowed",
                        codec::PrecisionWord(precision), worst / largest, allowed)};
  }
  return precision.pairs ? CheckPages(layer, pool) : OkStatus();
}

}  // namespace kvant::cli
