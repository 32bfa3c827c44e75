#include "kvant/codec/layer_block.h"

#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/base/checked.h"
#include "kvant/codec/equalization.h"
#include "kvant/codec/progressive.h"

namespace kvant::codec {
namespace {

// Takes sections off the front of one KV head's bytes.
template <typename Byte>
class Cutter {
 public:
  explicit Cutter(std::span<Byte> bytes) : rest_(bytes) {}
  std::span<Byte> Take(size_t count) {
    const std::span<Byte> section = rest_.first(count);
    rest_ = rest_.subspan(count);
    return section;
  }

 private:
  std::span<Byte> rest_;
};

template <typename Byte>
LayerBlockHead<Byte> CutHead(const LayerBlockLayout& layout, std::span<Byte> block, uint32_t kv_head) {
  KVANT_CHECK(block.size() == layout.total_bytes(), "a block is sized by its layout");
  KVANT_CHECK(kv_head < layout.shape.num_kv_heads, "a KV head of the shape");
  Cutter<Byte> cutter(block.subspan(layout.total_bytes() - layout.head_bytes() * (layout.shape.num_kv_heads - kv_head),
                                    layout.head_bytes()));
  const size_t exact_row = RowBytes(TokenCodec::kFp16, layout.shape.head_dim);
  LayerBlockHead<Byte> head;
  head.sink_keys = cutter.Take(exact_row * layout.split.num_sinks);
  head.sink_values = cutter.Take(exact_row * layout.split.num_sinks);
  head.tier_ids = cutter.Take(layout.tier_id_bytes());
  for (const Tier tier : kStoredTiers) {
    LayerBlockTier<Byte>& section = head.tiers[static_cast<size_t>(tier)];
    const RowFormat format = layout.format_of(tier);
    const size_t rows = layout.rows_of(tier);
    const size_t codes = format.code_bytes * rows;
    const size_t scales = format.has_scale ? sizeof(Half) * rows : 0;
    const size_t zeros = format.has_zero ? sizeof(Half) * rows : 0;
    section.key_codes = cutter.Take(codes);
    section.key_scales = cutter.Take(scales);
    section.key_zeros = cutter.Take(zeros);
    section.value_codes = cutter.Take(codes);
    section.value_scales = cutter.Take(scales);
    section.value_zeros = cutter.Take(zeros);
  }
  head.pages = cutter.Take(layout.pages_bytes());
  head.tail_keys = cutter.Take(exact_row * layout.split.num_tail);
  head.tail_values = cutter.Take(exact_row * layout.split.num_tail);
  return head;
}

}  // namespace

TokenSplit SplitPrompt(const Precision& precision, uint32_t num_tokens, PromptTail tail) {
  if (precision.is_exact()) {
    return {0, 0, num_tokens};
  }
  TokenSplit split;
  split.num_sinks = std::min(precision.num_sinks, num_tokens);
  const uint32_t beyond = num_tokens - split.num_sinks;
  const bool whole =
      !precision.pairs && (tail == PromptTail::kEncodeAll || precision.residual == Precision::kEndlessResidual);
  const uint32_t encoded = whole ? beyond : beyond / precision.residual * precision.residual;
  split.num_encoded = precision.equalize && encoded < kMinEqualizationTokens ? 0 : encoded;
  split.num_tail = beyond - split.num_encoded;
  return split;
}

TokenSplit SplitPrompt(const Precision& precision, uint32_t num_tokens, PromptTail tail, uint32_t window) {
  const TokenSplit split = SplitPrompt(precision, num_tokens, tail);
  uint32_t skipped = window == 0 ? 0 : num_tokens - std::min(num_tokens, window);
  if (precision.pairs && skipped > split.num_sinks && skipped < split.num_sinks + split.num_encoded) {
    skipped -= (skipped - split.num_sinks) % precision.pairs->page_tokens;
  }
  return SkipFirst(split, skipped);
}

TokenSplit SkipFirst(TokenSplit split, uint32_t count) {
  split.num_skipped += count;
  for (uint32_t* part : {&split.num_sinks, &split.num_encoded, &split.num_tail}) {
    const uint32_t from_part = std::min(count, *part);
    *part -= from_part;
    count -= from_part;
  }
  return split;
}

TierCounts LayerBlockLayout::counts() const {
  if (tiers) {
    return *tiers;
  }
  TierCounts counts;
  counts.of(TierOf(codec)) = pairs ? 0 : split.num_encoded;
  return counts;
}

RowFormat LayerBlockLayout::format_of(Tier tier) const {
  return progressive ? ProgressiveFormat(tier, shape.head_dim) : FormatOf(codec_of(tier), shape.head_dim);
}

size_t LayerBlockLayout::tier_id_bytes() const { return tiers && tiers->mixed() ? TierIdBytes(split.num_encoded) : 0; }

size_t LayerBlockLayout::map_bytes() const {
  return equalized ? 2 * sizeof(Half) * shape.num_kv_heads * shape.head_dim : 0;
}

size_t LayerBlockLayout::pair_bytes() const {
  return pairs ? kPairFormatBytes + pairs->map_bytes() * shape.num_kv_heads : 0;
}

uint32_t LayerBlockLayout::num_int4_paged() const { return int4_pages ? int4_pages->count * kInt4PageTokens : 0; }

size_t LayerBlockLayout::page_bytes() const {
  return pairs ? pairs->page_bytes() : int4_pages ? Int4PageFormat(shape.head_dim).page_bytes() : 0;
}

size_t LayerBlockLayout::pages_bytes() const {
  const size_t pages =
      pairs ? CeilDiv(split.num_encoded, pairs->format.page_tokens) : num_int4_paged() / kInt4PageTokens;
  return pages * page_bytes();
}

size_t LayerBlockLayout::head_bytes() const {
  const size_t exact_tokens = size_t{split.num_sinks} + split.num_tail;
  size_t rows = exact_tokens * RowBytes(TokenCodec::kFp16, shape.head_dim);
  for (const Tier tier : kStoredTiers) {
    rows += rows_of(tier) * format_of(tier).bytes();
  }
  return tier_id_bytes() + pages_bytes() + 2 * rows;
}

LayerBlockHead<std::byte> HeadOf(const LayerBlockLayout& layout, std::span<std::byte> block, uint32_t kv_head) {
  return CutHead<std::byte>(layout, block, kv_head);
}

LayerBlockHead<const std::byte> HeadOf(const LayerBlockLayout& layout, std::span<const std::byte> block,
                                       uint32_t kv_head) {
  return CutHead<const std::byte>(layout, block, kv_head);
}

BitsPerElement BitsOf(const LayerBlockLayout& layout) {
  const double elements = 2.0 * layout.shape.num_kv_heads * layout.shape.head_dim * layout.split.total();
  if (elements == 0) {
    return {};
  }
  const double exact_tokens = layout.split.num_sinks + layout.split.num_tail;
  const TierCounts counts = layout.counts();
  double payload_tokens = 16.0 * (exact_tokens + counts.fp16) + 8.0 * counts.int8 + 4.0 * counts.int4;
  if (layout.pairs) {
    const double key_bits = static_cast<double>(layout.pairs->bits_per_key) / layout.shape.head_dim;
    payload_tokens += (key_bits + layout.pairs->format.value_bits) / 2 * layout.split.num_encoded;
  }
  return {payload_tokens / layout.split.total(), 8.0 * static_cast<double>(layout.total_bytes()) / elements};
}

}  // namespace kvant::codec
