#include "eval/round_trip.h"

#include <algorithm>
#include <numeric>

#include "eval/page_maps.h"
#include "kvant/engine/prompt_encoder.h"

namespace kvant::eval {
namespace {

constexpr double kScaleAndZeroBits = 32;

void Store(const PlainHead& head, uint32_t kv_head, cache::LayerCache* cache) {
  std::vector<Half> keys(head.keys.size());
  std::vector<Half> values(head.values.size());
  ToHalf(head.keys, keys);
  ToHalf(head.values, values);
  cache->StoreExact(kv_head, 0, head.num_positions(), keys.data(), values.data(), head.head_dim);
}

// What is out of reach is stored nowhere; in the fp16 cache it stays what it was.
void KeepUnreachable(const PlainHead& exact, PlainHead* head) {
  for (uint32_t t = 0; t < head->num_positions(); ++t) {
    if (head->tiers[t] == codec::Tier::kDropped) {
      const auto row = static_cast<ptrdiff_t>(size_t{t} * head->head_dim);
      std::copy_n(exact.keys.begin() + row, head->head_dim, head->keys.begin() + row);
      std::copy_n(exact.values.begin() + row, head->head_dim, head->values.begin() + row);
    }
  }
}

std::vector<uint32_t> Positions(PageSpan page) {
  std::vector<uint32_t> positions(page.end - page.begin);
  std::iota(positions.begin(), positions.end(), page.begin);
  return positions;
}

// A layer's pages, those out of reach left out.
std::vector<PageSpan> PagesOf(const cache::LayerCache& stored) {
  std::vector<PageSpan> pages;
  const codec::TokenSplit split = stored.split();
  const uint32_t tokens = stored.precision().pairs->page_tokens;
  for (uint32_t first = split.num_sinks + stored.num_skipped(); first < split.num_sinks + split.num_encoded;
       first += tokens) {
    pages.push_back({first, first + tokens});
  }
  return pages;
}

}  // namespace

engine::PromptStatistics RoundTrip::wanted() const { return engine::StatisticsFor(candidate_.precision); }

Status RoundTrip::LayerDone(uint32_t layer, cache::LayerCache& cache, const engine::LayerStatistics& statistics) {
  cache::MemoryAccount account;
  cache::LayerCache stored(cache.shape(), candidate_.precision, backend_->isa(), &account);
  KVANT_RETURN_IF_ERROR(stored.ExtendExact(cache.num_tokens()));
  std::vector<PlainHead> exact;
  for (uint32_t kv_head = 0; kv_head < params_.num_kv_heads; ++kv_head) {
    exact.push_back(LoadPlainHead(cache, kv_head));
    Store(exact.back(), kv_head, &stored);
  }
  stored.SetWindow(cache.window());
  engine::EncodeInPlace encode(candidate_.precision, codec::PromptTail::kEncodeAll, &backend_->pool());
  KVANT_RETURN_IF_ERROR(encode.LayerDone(layer, stored, statistics));
  std::vector<Extra> extras(params_.num_kv_heads);
  backend_->pool().ParallelFor(params_.num_kv_heads, [&](size_t index, int) {
    const auto kv_head = static_cast<uint32_t>(index);
    PlainHead head = LoadPlainHead(stored, kv_head);
    extras[index] = ReplaceKeys(stored, statistics, layer, kv_head, exact[index], &head);
    if (candidate_.exact_values) {
      head.values = exact[index].values;
    }
    KeepUnreachable(exact[index], &head);
    Store(head, kv_head, &cache);
  });
  AddBits(stored, extras);
  return OkStatus();
}

RoundTrip::Extra RoundTrip::ReplaceKeys(const cache::LayerCache& stored, const engine::LayerStatistics& statistics,
                                        uint32_t layer, uint32_t kv_head, const PlainHead& exact,
                                        PlainHead* head) const {
  if (candidate_.keys == KeysOf::kPrecision) {
    return {};
  }
  const codec::PairPrecision& pairs = *candidate_.precision.pairs;
  const bool reselect = candidate_.keys == KeysOf::kReselection;
  const uint32_t group = params_.num_q_heads / params_.num_kv_heads;
  const std::span<const Half> queries = reselect ? std::span<const Half>(queries_[layer]) : std::span<const Half>();
  Reselection reselection(pairs, statistics.pairs.front().pairs(), exact, queries, params_.num_q_heads, kv_head * group,
                          group);
  // A mask is a bit a channel or a bit a pair; four widths are two bits a pair. The layer's own map is not needed.
  const double map_bits = !reselect ? head->head_dim : head->head_dim / 2.0 * (pairs.two_widths ? 1 : 2);
  Extra extra{0, -2.0 * head->head_dim};
  for (const PageSpan page : PagesOf(stored)) {
    const std::vector<uint32_t> widths =
        reselect ? reselection.WidthsOf(page, uint64_t{layer} * params_.num_kv_heads + kv_head)
                 : WidthsOfPage(pairs, exact, page);
    RoundTripKeys(pairs.KeyRuleOf(), widths, Positions(page), exact, head);
    const double bits = std::accumulate(widths.begin(), widths.end(), 0.0) - stored.block_layout().pairs->bits_per_key;
    extra.payload += bits * pairs.page_tokens;
    extra.effective += bits * pairs.page_tokens + map_bits;
  }
  return extra;
}

void RoundTrip::AddBits(const cache::LayerCache& stored, std::span<const Extra> extras) {
  const codec::LayerBlockLayout layout = stored.reachable_layout();
  const codec::BitsPerElement bits = codec::BitsOf(layout);
  const double elements = 2.0 * layout.shape.num_kv_heads * layout.shape.head_dim * layout.split.total();
  double payload = 0;
  double effective = 0;
  for (const Extra& extra : extras) {
    payload += extra.payload;
    effective += extra.effective;
  }
  if (candidate_.exact_values) {
    const codec::PairFormat& format = layout.pairs->format;
    const double encoded = elements / 2 / layout.split.total() * layout.split.num_encoded;
    payload += encoded * (16.0 - format.value_bits);
    effective += encoded * (16.0 - format.value_bits - kScaleAndZeroBits / format.value_group);
  }
  bits_.payload += (bits.payload + payload / elements) / params_.num_layers;
  bits_.effective += (bits.effective + effective / elements) / params_.num_layers;
}

}  // namespace kvant::eval
