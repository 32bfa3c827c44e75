#include "kvant/kernels/pair_pages.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"

// Pair pages in a layer: packed when a page's tokens are there, sent and adopted as they are.
namespace kvant::cache {
namespace {

Status CheckPage(const codec::PairPageLayout& layout, std::span<const std::byte> page, uint32_t kv_head) {
  const auto finite = [&](size_t begin, size_t end) {
    const auto* halves = reinterpret_cast<const Half*>(page.data() + begin);
    return AllFinite(std::span(halves, (end - begin) / sizeof(Half)));
  };
  if (finite(layout.key_scales, layout.value_codes) && finite(layout.value_scales, layout.total_bytes)) {
    return OkStatus();
  }
  return {StatusCode::kNumeric, "NaN or infinity in the scales of a page of KV head " + std::to_string(kv_head)};
}

Status CheckPages(const codec::PairPageLayout& layout, std::span<const std::byte> pages, uint32_t kv_head) {
  for (size_t at = 0; at < pages.size(); at += layout.total_bytes) {
    KVANT_RETURN_IF_ERROR(CheckPage(layout, pages.subspan(at, layout.total_bytes), kv_head));
  }
  return OkStatus();
}

}  // namespace

void LayerCache::SetPairMaps(codec::PairLayout pairs, std::span<const codec::WidthMap> maps) {
  KVANT_CHECK(precision_.pairs && maps.size() == shape_.num_kv_heads && num_encoded() == 0,
              "a map a KV head, before there are pages");
  pair_format_ = codec::PairBlockFormatOf(*precision_.pairs, shape_.head_dim, pairs, maps);
  UsePairMaps({maps.begin(), maps.end()});
}

Status LayerCache::OtherMaps() { return {StatusCode::kMismatch, "made by other maps than the model's profile has"}; }

void LayerCache::UseMaps(const codec::LayerMaps& maps) {
  if (precision_.pairs) {
    SetPairMaps(maps.pairs->pairs, maps.widths);
  } else {
    equalization_ = maps.equalization;
  }
}

codec::LayerMaps LayerCache::maps() const {
  if (!precision_.pairs) {
    return {std::nullopt, {}, equalization_};
  }
  codec::LayerMaps maps{pair_format_, {}, std::nullopt};
  for (const kernels::PairPlan& plan : plans_) {
    maps.widths.push_back(plan.map());
  }
  return maps;
}

// The same map for all prompts: what a page is like is known from the start. A head dimension that pages cannot have
// is refused before anything is encoded (codec::CheckPrecision).
void LayerCache::UseInt4Pages() {
  if (precision_.has_int4_pages() && codec::CheckPrecision(precision_, shape_.head_dim).ok()) {
    pair_format_ = codec::Int4PageFormat(shape_.head_dim);
    UsePairMaps(std::vector(shape_.num_kv_heads, codec::Int4PageMap(shape_.head_dim)));
  }
}

void LayerCache::UsePairMaps(std::vector<codec::WidthMap> maps) {
  plans_.clear();
  for (codec::WidthMap& map : maps) {
    plans_.emplace_back(pair_format_->format, std::move(map));
  }
  pages_ = PageRun(pair_format_->format.page_tokens, pair_format_->page_bytes(), shape_.num_kv_heads, account_);
}

kernels::AttendSegment LayerCache::PairSegment(uint32_t kv_head) const {
  kernels::AttendSegment segment;
  segment.pages = pages_.pages();
  segment.record_offset = pages_.record_offset(kv_head);
  segment.num_tokens = pages_.num_tokens();
  segment.first_position = static_cast<int32_t>(sinks_.num_tokens());
  if (precision_.spectrum) {
    segment.positions = positions_[static_cast<size_t>(codec::Tier::kInt4)][kv_head].data();
  }
  segment.pair = &plans_[kv_head];
  segment.rotated_values = pair_format_->rotated_values;
  return segment;
}

// One page of rows that lie together.
void LayerCache::PackRows(uint32_t kv_head, const Half* keys, const Half* values, std::span<std::byte> page) const {
  kernels::PackPairPage(isa_, plans_[kv_head], keys, values, shape_.head_dim, page);
}

// One page of residual tokens from `first` on.
void LayerCache::PackPage(uint32_t kv_head, uint32_t first, std::span<std::byte> page) const {
  const uint32_t head_dim = shape_.head_dim;
  const uint32_t tokens = pair_format_->format.page_tokens;
  std::vector<Half> keys(size_t{tokens} * head_dim);
  std::vector<Half> values(keys.size());
  LoadRun(residual_, kv_head, first, tokens, keys.data(), values.data());
  if (pair_format_->rotated_values) {
    kernels::RotateValueRows(isa_, head_dim, values.data(), head_dim, tokens, values.data(), head_dim);
  }
  PackRows(kv_head, keys.data(), values.data(), page);
}

// The residual's first `count` tokens, of which the first `skipped` are out of reach: whole pages, both.
Status LayerCache::MoveToPages(uint32_t skipped, uint32_t count, ThreadPool* pool) {
  KVANT_CHECK(!plans_.empty(), "maps are made of the prompt, before its end");
  const uint32_t tokens = pair_format_->format.page_tokens;
  KVANT_RETURN_IF_ERROR(SkipEncoded(skipped));
  const uint32_t first_page = pages_.num_tokens() / tokens;
  KVANT_RETURN_IF_ERROR(pages_.Extend(count - skipped));
  ForEachHead(pool, [&](uint32_t kv_head) {
    for (uint32_t page = 0; page < (count - skipped) / tokens; ++page) {
      PackPage(kv_head, skipped + page * tokens,
               {pages_.record(first_page + page, kv_head), pair_format_->page_bytes()});
    }
  });
  return DropResidualFront(count);
}

void LayerCache::WritePairHeader(std::span<std::byte> block) const {
  codec::PutPairMaps(*pair_format_, maps().widths, block);
}

// The residual's tokens from `first` on, page by page.
void LayerCache::WritePages(uint32_t kv_head, uint32_t first, std::span<std::byte> pages) const {
  const size_t page_bytes = pair_format_->page_bytes();
  for (size_t page = 0; page * page_bytes < pages.size(); ++page) {
    PackPage(kv_head, first + static_cast<uint32_t>(page) * pair_format_->format.page_tokens,
             pages.subspan(page * page_bytes, page_bytes));
  }
}

Status LayerCache::AdoptPairHeader(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  KVANT_ASSIGN_OR_RETURN(std::vector<codec::WidthMap> maps,
                         codec::TakeWidthMaps(*layout.pairs, shape_.num_kv_heads, block));
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    const codec::PairPageLayout page_layout = codec::PairPageLayout::Make(layout.pairs->format, maps[kv_head]);
    KVANT_RETURN_IF_ERROR(CheckPages(page_layout, codec::HeadOf(layout, block, kv_head).pages, kv_head));
  }
  const auto planned = [](const kernels::PairPlan& plan, const codec::WidthMap& map) { return plan.map() == map; };
  if (!plans_.empty() && !std::equal(plans_.begin(), plans_.end(), maps.begin(), maps.end(), planned)) {
    return OtherMaps();
  }
  pair_format_ = layout.pairs;
  UsePairMaps(std::move(maps));
  return OkStatus();
}

Status LayerCache::CheckInt4Pages(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) const {
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    KVANT_RETURN_IF_ERROR(CheckPages(plans_[kv_head].layout(), codec::HeadOf(layout, block, kv_head).pages, kv_head));
  }
  return OkStatus();
}

void LayerCache::AdoptPages(uint32_t kv_head, std::span<const std::byte> pages) {
  if (pages.empty()) {
    return;
  }
  const size_t page_bytes = pair_format_->page_bytes();
  const auto count = static_cast<uint32_t>(pages.size() / page_bytes);
  const uint32_t first = pages_.num_tokens() / pair_format_->format.page_tokens - count;
  for (uint32_t page = 0; page < count; ++page) {
    std::memcpy(pages_.record(first + page, kv_head), pages.data() + page * page_bytes, page_bytes);
  }
}

}  // namespace kvant::cache
