#include "kvant/codec/layer_block.h"

#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/codec/equalization.h"

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
  Cutter<Byte> cutter(block.subspan(layout.map_bytes() + layout.head_bytes() * kv_head, layout.head_bytes()));
  const size_t exact_row = RowBytes(TokenCodec::kFp16, layout.shape.head_dim);
  const size_t codes = RowCodeBytes(layout.codec, layout.shape.head_dim) * layout.split.num_encoded;
  const size_t scales = HasScale(layout.codec) ? sizeof(Half) * layout.split.num_encoded : 0;
  const size_t zeros = HasZero(layout.codec) ? sizeof(Half) * layout.split.num_encoded : 0;
  LayerBlockHead<Byte> head;
  head.sink_keys = cutter.Take(exact_row * layout.split.num_sinks);
  head.sink_values = cutter.Take(exact_row * layout.split.num_sinks);
  head.key_codes = cutter.Take(codes);
  head.key_scales = cutter.Take(scales);
  head.key_zeros = cutter.Take(zeros);
  head.value_codes = cutter.Take(codes);
  head.value_scales = cutter.Take(scales);
  head.value_zeros = cutter.Take(zeros);
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
  const bool whole = tail == PromptTail::kEncodeAll || precision.residual == Precision::kEndlessResidual;
  const uint32_t encoded = whole ? beyond : beyond / precision.residual * precision.residual;
  split.num_encoded = precision.equalize && encoded < kMinEqualizationTokens ? 0 : encoded;
  split.num_tail = beyond - split.num_encoded;
  return split;
}

size_t LayerBlockLayout::map_bytes() const {
  return equalized ? 2 * sizeof(Half) * shape.num_kv_heads * shape.head_dim : 0;
}

size_t LayerBlockLayout::head_bytes() const {
  const size_t exact_tokens = size_t{split.num_sinks} + split.num_tail;
  return 2 * (exact_tokens * RowBytes(TokenCodec::kFp16, shape.head_dim) +
              split.num_encoded * RowBytes(codec, shape.head_dim));
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
  const double payload_tokens = 16.0 * exact_tokens + CodeBits(layout.codec) * double{1} * layout.split.num_encoded;
  return {payload_tokens / layout.split.total(), 8.0 * static_cast<double>(layout.total_bytes()) / elements};
}

}  // namespace kvant::codec
