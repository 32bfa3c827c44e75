#include <algorithm>
#include <cstring>
#include <string>

#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"

namespace kvant::cache {
namespace {

template <typename To, typename From>
std::span<To> As(std::span<From> section) {
  return {reinterpret_cast<To*>(section.data()), section.size() / sizeof(To)};
}

codec::ConstTokenRows KeysOf(const codec::LayerBlockTier<const std::byte>& tier) {
  return {As<const uint8_t>(tier.key_codes), As<const Half>(tier.key_scales), As<const Half>(tier.key_zeros)};
}

codec::ConstTokenRows ValuesOf(const codec::LayerBlockTier<const std::byte>& tier) {
  return {As<const uint8_t>(tier.value_codes), As<const Half>(tier.value_scales), As<const Half>(tier.value_zeros)};
}

// Rows into the sections of their tier, the first of them at row `first`.
void CopyRows(const codec::ConstTokenRows& rows, uint32_t first, size_t row_bytes, std::span<std::byte> codes,
              std::span<std::byte> scales, std::span<std::byte> zeros) {
  const auto copy = [](std::span<const std::byte> from, std::span<std::byte> to, size_t offset) {
    if (!from.empty()) {
      std::memcpy(to.subspan(offset, from.size()).data(), from.data(), from.size());
    }
  };
  copy(std::as_bytes(rows.codes), codes, first * row_bytes);
  copy(std::as_bytes(rows.scales), scales, first * sizeof(Half));
  copy(std::as_bytes(rows.zeros), zeros, first * sizeof(Half));
}

Status CheckFinite(std::span<const std::byte> section, const char* what, uint32_t kv_head) {
  if (AllFinite(As<const Half>(section))) {
    return OkStatus();
  }
  return {StatusCode::kNumeric, std::string("NaN or infinity in ") + what + " of KV head " + std::to_string(kv_head)};
}

// Of the progressive code: the scales of its 4-bit tier are multiples of these.
Status CheckScales(const codec::LayerBlockTier<const std::byte>& tier, uint32_t kv_head) {
  for (const auto& scales : {As<const Half>(tier.key_scales), As<const Half>(tier.value_scales)}) {
    for (const Half scale : scales) {
      if (!(ToFloat(scale) >= 0 && ToFloat(scale) <= codec::kMaxProgressiveScale)) {
        return {StatusCode::kNumeric,
                "a scale of the progressive code beyond its limits in KV head " + std::to_string(kv_head)};
      }
    }
  }
  return OkStatus();
}

Status CheckHead(const codec::LayerBlockHead<const std::byte>& head, bool progressive, uint32_t kv_head) {
  KVANT_RETURN_IF_ERROR(CheckFinite(head.sink_keys, "the sink keys", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.sink_values, "the sink values", kv_head));
  const auto& best = head.tiers[static_cast<size_t>(codec::Tier::kFp16)];
  if (!progressive) {
    KVANT_RETURN_IF_ERROR(CheckFinite(best.key_codes, "the fp16 keys", kv_head));
    KVANT_RETURN_IF_ERROR(CheckFinite(best.value_codes, "the fp16 values", kv_head));
  }
  for (const codec::LayerBlockTier<const std::byte>& tier : head.tiers) {
    KVANT_RETURN_IF_ERROR(CheckFinite(tier.key_scales, "the key scales", kv_head));
    KVANT_RETURN_IF_ERROR(CheckFinite(tier.key_zeros, "the key zeros", kv_head));
    KVANT_RETURN_IF_ERROR(CheckFinite(tier.value_scales, "the value scales", kv_head));
    KVANT_RETURN_IF_ERROR(CheckFinite(tier.value_zeros, "the value zeros", kv_head));
    if (progressive) {
      KVANT_RETURN_IF_ERROR(CheckScales(tier, kv_head));
    }
  }
  KVANT_RETURN_IF_ERROR(CheckFinite(head.tail_keys, "the last keys", kv_head));
  return CheckFinite(head.tail_values, "the last values", kv_head);
}

Result<codec::Equalization> ReadMap(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  const std::span<const Half> halves = As<const Half>(block.subspan(layout.counts_bytes(), layout.map_bytes()));
  const size_t half_count = halves.size() / 2;
  codec::Equalization map{layout.shape.num_kv_heads,
                          layout.shape.head_dim,
                          {halves.begin(), halves.begin() + static_cast<ptrdiff_t>(half_count)},
                          {halves.begin() + static_cast<ptrdiff_t>(half_count), halves.end()}};
  KVANT_RETURN_IF_ERROR(codec::CheckEqualization(map));
  return map;
}

// The tiers of a block's encoded tokens.
Result<codec::TierMap> ReadTierIds(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  codec::TierMap map{*layout.tiers, {}};
  std::vector<codec::Tier> ids(layout.split.num_encoded);
  for (const codec::Tier tier : codec::kTiers) {
    if (layout.tiers->of(tier) > 0) {
      std::fill(ids.begin(), ids.end(), tier);  // of all, where no ids are sent
    }
  }
  for (uint32_t kv_head = 0; kv_head < layout.shape.num_kv_heads; ++kv_head) {
    const std::span<const std::byte> packed = codec::HeadOf(layout, block, kv_head).tier_ids;
    if (!packed.empty() && (!codec::UnpackTierIds(packed, ids) || codec::CountTiers(ids) != *layout.tiers)) {
      return Status(StatusCode::kCorruption,
                    "the tier ids of KV head " + std::to_string(kv_head) + " are not as many of each as announced");
    }
    map.ids.insert(map.ids.end(), ids.begin(), ids.end());
  }
  return map;
}

}  // namespace

codec::LayerBlockLayout LayerCache::PlanBlock(codec::PromptTail tail, const codec::TierMap* tiers) const {
  const codec::TokenSplit split = codec::SplitPrompt(precision_, num_tokens(), tail, window_);
  codec::LayerBlockLayout layout{shape_, precision_.codec,
                                 precision_.equalize && (split.num_encoded > 0 || equalization_), split};
  if (precision_.spectrum) {
    layout.tiers = tiers == nullptr ? codec::TierCounts{} : tiers->counts;
    layout.progressive = precision_.is_progressive();
  }
  if (precision_.has_int4_pages()) {
    const uint32_t pages = NumInt4Pages(*layout.tiers);
    layout.int4_pages = {layout.tiers->int4 - pages * codec::kInt4PageTokens, pages};
  } else {
    layout.pairs = pair_format_;
  }
  return layout;
}

void LayerCache::WriteBlock(const codec::LayerBlockLayout& layout, std::span<std::byte> block, ThreadPool* pool,
                            const codec::TierMap* tiers) const {
  KVANT_CHECK(num_encoded() == 0, "only a layer that is still exact is written as a block");
  KVANT_CHECK(layout.split.num_positions() == num_tokens() && layout.split.num_skipped <= num_unreachable(),
              "the layout was planned for this layer");
  KVANT_CHECK(layout.pairs || layout.counts().total() == layout.split.num_encoded,
              "the layout was planned with these tiers");
  std::optional<codec::Equalization> measured;
  if (layout.equalized && !equalization_) {
    measured = MeasureEqualization(pool);
  }
  const codec::Equalization* map = !layout.equalized ? nullptr : measured ? &*measured : &*equalization_;
  WriteBeforeHeads(layout, map, block);
  ForEachHead(pool, [&](uint32_t kv_head) { WriteHead(layout, map, tiers, kv_head, block); });
}

void LayerCache::WriteBeforeHeads(const codec::LayerBlockLayout& layout, const codec::Equalization* map,
                                  std::span<std::byte> block) const {
  if (layout.tiers) {
    const codec::Int4Pages int4_pages = layout.int4_pages.value_or(codec::Int4Pages{});
    const uint32_t counts[] = {layout.tiers->fp16,    layout.tiers->int8,     layout.tiers->int4,
                               layout.tiers->dropped, int4_pages.rows_before, int4_pages.count};
    std::memcpy(block.data(), counts, layout.counts_bytes());
  }
  if (layout.pairs) {
    WritePairHeader(block);
  }
  if (map != nullptr) {
    const std::span<std::byte> section = block.subspan(layout.counts_bytes(), layout.map_bytes());
    std::memcpy(section.data(), map->mean.data(), section.size() / 2);
    std::memcpy(section.data() + section.size() / 2, map->scale.data(), section.size() / 2);
  }
}

void LayerCache::WriteHead(const codec::LayerBlockLayout& layout, const codec::Equalization* map,
                           const codec::TierMap* tiers, uint32_t kv_head, std::span<std::byte> block) const {
  const codec::LayerBlockHead<std::byte> head = codec::HeadOf(layout, block, kv_head);
  LoadRun(sinks_, kv_head, sinks_.num_tokens() - layout.split.num_sinks, layout.split.num_sinks,
          As<Half>(head.sink_keys).data(), As<Half>(head.sink_values).data());
  const uint32_t skipped = layout.split.num_skipped - std::min(layout.split.num_skipped, sinks_.num_tokens());
  const std::span<const codec::Tier> ids = tiers == nullptr ? std::span<const codec::Tier>() : tiers->OfHead(kv_head);
  if (!head.tier_ids.empty()) {
    codec::PackTierIds(ids, head.tier_ids);
  }
  if (layout.pairs) {
    WritePages(kv_head, skipped, head.pages);
  } else {
    const auto write_rows = [&](codec::Tier tier, uint32_t first, uint32_t, const codec::ConstTokenRows& keys,
                                const codec::ConstTokenRows& values) {
      const codec::LayerBlockTier<std::byte>& to = head.tiers[static_cast<size_t>(tier)];
      const size_t row_bytes = layout.format_of(tier).code_bytes;
      CopyRows(keys, first, row_bytes, to.key_codes, to.key_scales, to.key_zeros);
      CopyRows(values, first, row_bytes, to.value_codes, to.value_scales, to.value_zeros);
    };
    const auto write_page = [&](uint32_t page, const Half* keys, const Half* values) {
      PackRows(kv_head, keys, values, head.pages.subspan(page * layout.page_bytes(), layout.page_bytes()));
    };
    EncodeHead(map, ids, kv_head, skipped, layout.split.num_encoded,
               {write_rows, layout.rows_of(codec::Tier::kInt4), write_page});
  }
  LoadRun(residual_, kv_head, skipped + layout.split.num_encoded, layout.split.num_tail,
          As<Half>(head.tail_keys).data(), As<Half>(head.tail_values).data());
}

Status LayerCache::AdoptBlock(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  if (num_tokens() > 0) {
    return {StatusCode::kInvalidArgument, "the layer already holds " + std::to_string(num_tokens()) + " tokens"};
  }
  const bool same_shape = layout.shape == shape_ && layout.codec == precision_.codec;
  if (!same_shape || layout.tiers.has_value() != precision_.spectrum.has_value() ||
      layout.progressive != precision_.is_progressive() ||
      layout.int4_pages.has_value() != precision_.has_int4_pages() ||
      layout.pairs.has_value() != precision_.pairs.has_value() || layout.split.num_sinks > precision_.num_sinks) {
    return {StatusCode::kMismatch, "a layer block of another shape, codec or number of sinks"};
  }
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    KVANT_RETURN_IF_ERROR(CheckHead(codec::HeadOf(layout, block, kv_head), layout.progressive, kv_head));
  }
  if (layout.equalized) {
    KVANT_ASSIGN_OR_RETURN(codec::Equalization map, ReadMap(layout, block));
    if (equalization_ && *equalization_ != map) {
      return OtherMaps();
    }
    equalization_ = std::move(map);
  }
  if (layout.pairs) {
    KVANT_RETURN_IF_ERROR(AdoptPairHeader(layout, block));
  }
  if (layout.int4_pages) {
    KVANT_RETURN_IF_ERROR(CheckInt4Pages(layout, block));
  }
  codec::TierMap tiers;
  if (layout.tiers) {
    KVANT_ASSIGN_OR_RETURN(tiers, ReadTierIds(layout, block));
  }
  KVANT_RETURN_IF_ERROR(ReserveSlots(layout));
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    AdoptHead(layout, kv_head, block);
    if (layout.tiers) {
      AddPositions(tiers.OfHead(kv_head), kv_head, sinks_.num_tokens() + num_skipped_, layout.split.num_encoded,
                   num_int4_before_pages_);
    }
  }
  FreeUnreachable();
  return OkStatus();
}

// Room for a block's tokens behind the slots of those that were skipped.
// Errors  kMismatch: a split that no prompt of this precision has
Status LayerCache::ReserveSlots(const codec::LayerBlockLayout& layout) {
  codec::TokenSplit whole = layout.split;
  if (layout.split.num_skipped > 0) {
    const auto fits = [&](codec::PromptTail tail) {
      whole = codec::SplitPrompt(precision_, layout.split.num_positions(), tail);
      return codec::SkipFirst(whole, layout.split.num_skipped) == layout.split;
    };
    if (!fits(codec::PromptTail::kEncodeAll) && !fits(codec::PromptTail::kByPosition)) {
      return {StatusCode::kMismatch, "a layer block whose first tokens are skipped in another way"};
    }
  }
  KVANT_RETURN_IF_ERROR(sinks_.Extend(whole.num_sinks));
  KVANT_RETURN_IF_ERROR(SkipEncoded(whole.num_encoded - layout.split.num_encoded));
  KVANT_RETURN_IF_ERROR(layout.pairs ? pages_.Extend(layout.split.num_encoded)
                                     : ExtendTiers(layout.counts(), layout.num_int4_paged() / codec::kInt4PageTokens));
  num_int4_before_pages_ = layout.int4_pages ? layout.int4_pages->rows_before : 0;
  KVANT_RETURN_IF_ERROR(residual_.Skip(whole.num_tail - layout.split.num_tail));
  return residual_.Extend(layout.split.num_tail);
}

void LayerCache::AdoptHead(const codec::LayerBlockLayout& layout, uint32_t kv_head, std::span<const std::byte> block) {
  const codec::LayerBlockHead<const std::byte> head = codec::HeadOf(layout, block, kv_head);
  const auto first = [](const PageRun& run, uint32_t count) { return run.num_tokens() - count; };
  StoreRun(sinks_, kv_head, first(sinks_, layout.split.num_sinks), layout.split.num_sinks,
           As<const Half>(head.sink_keys).data(), As<const Half>(head.sink_values).data(), shape_.head_dim);
  for (const codec::Tier tier : codec::kStoredTiers) {
    const codec::LayerBlockTier<const std::byte>& rows = head.tiers[static_cast<size_t>(tier)];
    const uint32_t count = layout.rows_of(tier);
    StoreTier(tier, kv_head, first(run(tier), count), count, KeysOf(rows), ValuesOf(rows));
  }
  AdoptPages(kv_head, head.pages);
  StoreRun(residual_, kv_head, first(residual_, layout.split.num_tail), layout.split.num_tail,
           As<const Half>(head.tail_keys).data(), As<const Half>(head.tail_values).data(), shape_.head_dim);
}

}  // namespace kvant::cache
