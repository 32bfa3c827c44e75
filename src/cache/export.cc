#include <algorithm>
#include <cstring>

#include "cache/row_buffer.h"
#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"

// A layer as it lies, as a block: what a saved session holds.
namespace kvant::cache {
namespace {

template <typename To>
std::span<To> As(std::span<std::byte> section) {
  return {reinterpret_cast<To*>(section.data()), section.size() / sizeof(To)};
}

codec::TokenRows RowsOf(std::span<std::byte> codes, std::span<std::byte> scales, std::span<std::byte> zeros) {
  return {As<uint8_t>(codes), As<Half>(scales), As<Half>(zeros)};
}

codec::TokenRows Part(const codec::TokenRows& rows, size_t row_bytes, uint32_t first, uint32_t count) {
  const auto part = [&](std::span<Half> params) { return params.empty() ? params : params.subspan(first, count); };
  return {rows.codes.subspan(first * row_bytes, count * row_bytes), part(rows.scales), part(rows.zeros)};
}

}  // namespace

void LayerCache::ExportBlock(std::span<std::byte> block, ThreadPool* pool) const {
  KVANT_CHECK(!precision_.is_progressive(), "planes cannot be told from what they became");
  const codec::LayerBlockLayout layout = block_layout();
  KVANT_CHECK(block.size() == layout.total_bytes(), "a block is sized by its layout");
  std::fill(block.begin(), block.end(), std::byte{0});  // what is out of reach has nothing else
  WriteBeforeHeads(layout, equalization_ ? &*equalization_ : nullptr, block);
  ForEachHead(pool, [&](uint32_t kv_head) { ExportHead(layout, kv_head, block); });
}

void LayerCache::ExportHead(const codec::LayerBlockLayout& layout, uint32_t kv_head, std::span<std::byte> block) const {
  const codec::LayerBlockHead<std::byte> head = codec::HeadOf(layout, block, kv_head);
  LoadRun(sinks_, kv_head, 0, layout.split.num_sinks, As<Half>(head.sink_keys).data(),
          As<Half>(head.sink_values).data());
  if (!head.tier_ids.empty()) {
    std::vector<codec::Tier> ids(layout.split.num_encoded, codec::Tier::kDropped);
    for (const codec::Tier tier : codec::kStoredTiers) {
      for (const int32_t position : positions_[static_cast<size_t>(tier)][kv_head]) {
        ids[static_cast<uint32_t>(position) - sinks_.num_tokens()] = tier;
      }
    }
    codec::PackTierIds(ids, head.tier_ids);
  }
  for (const codec::Tier tier : codec::kStoredTiers) {
    const codec::LayerBlockTier<std::byte>& to = head.tiers[static_cast<size_t>(tier)];
    LoadRows(run(tier), kv_head, RowsOf(to.key_codes, to.key_scales, to.key_zeros),
             RowsOf(to.value_codes, to.value_scales, to.value_zeros));
  }
  const size_t page_bytes = layout.page_bytes();
  const uint32_t capacity = std::max(pages_.layout().capacity, 1U);
  for (uint32_t page = pages_.num_released() / capacity; page < pages_.num_tokens() / capacity; ++page) {
    std::memcpy(head.pages.data() + page * page_bytes, pages_.record(page, kv_head), page_bytes);
  }
  LoadRun(residual_, kv_head, 0, layout.split.num_tail, As<Half>(head.tail_keys).data(),
          As<Half>(head.tail_values).data());
}

void LayerCache::LoadRows(const PageRun& run, uint32_t kv_head, const codec::TokenRows& keys,
                          const codec::TokenRows& values) const {
  const size_t row_bytes = codec::RowCodeBytes(run.layout().codec, shape_.head_dim);
  const uint32_t first = std::min(run.num_released(), run.num_tokens());
  ForEachPiece(run.layout().capacity, first, run.num_tokens() - first,
               [&](uint32_t page, uint32_t slot, uint32_t n, uint32_t offset) {
                 rows_->load(run.layout(), run.record(page, kv_head), slot, n, Part(keys, row_bytes, first + offset, n),
                             Part(values, row_bytes, first + offset, n));
               });
}

}  // namespace kvant::cache
