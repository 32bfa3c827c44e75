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

// Rows [first, first + count) of whole sections.
template <typename Rows, typename Codes, typename Params>
Rows RowsOf(size_t row_bytes, std::span<Codes> codes, std::span<Params> scales, std::span<Params> zeros, size_t first,
            size_t count) {
  const auto part = [&](std::span<Params> section) { return section.empty() ? section : section.subspan(first, count); };
  return {codes.subspan(first * row_bytes, count * row_bytes), part(scales), part(zeros)};
}

Status CheckFinite(std::span<const std::byte> section, const char* what, uint32_t kv_head) {
  if (AllFinite(As<const Half>(section))) {
    return OkStatus();
  }
  return {StatusCode::kNumeric,
          std::string("NaN or infinity in ") + what + " of KV head " + std::to_string(kv_head)};
}

Status CheckHead(const codec::LayerBlockHead<const std::byte>& head, uint32_t kv_head) {
  KVANT_RETURN_IF_ERROR(CheckFinite(head.sink_keys, "the sink keys", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.sink_values, "the sink values", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.key_scales, "the key scales", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.key_zeros, "the key zeros", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.value_scales, "the value scales", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.value_zeros, "the value zeros", kv_head));
  KVANT_RETURN_IF_ERROR(CheckFinite(head.tail_keys, "the last keys", kv_head));
  return CheckFinite(head.tail_values, "the last values", kv_head);
}

Result<codec::Equalization> ReadMap(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  const std::span<const Half> halves = As<const Half>(block.first(layout.map_bytes()));
  const size_t half_count = halves.size() / 2;
  codec::Equalization map{layout.shape.num_kv_heads, layout.shape.head_dim,
                          {halves.begin(), halves.begin() + static_cast<ptrdiff_t>(half_count)},
                          {halves.begin() + static_cast<ptrdiff_t>(half_count), halves.end()}};
  const bool positive = std::all_of(map.scale.begin(), map.scale.end(),
                                    [](Half scale) { return scale.bits > 0 && scale.bits < 0x7C00; });
  if (!AllFinite(map.mean) || !positive) {
    return Status(StatusCode::kNumeric, "an equalization mean is not finite or a scale is not positive");
  }
  return map;
}

}  // namespace

codec::LayerBlockLayout LayerCache::PlanBlock(codec::PromptTail tail) const {
  const codec::TokenSplit split = codec::SplitPrompt(precision_, num_tokens(), tail);
  return {shape_, precision_.codec, precision_.equalize && split.num_encoded > 0, split};
}

void LayerCache::WriteBlock(const codec::LayerBlockLayout& layout, std::span<std::byte> block,
                            ThreadPool* pool) const {
  KVANT_CHECK(encoded_.num_tokens() == 0, "only a layer that is still exact is written as a block");
  KVANT_CHECK(layout.split.num_sinks == sinks_.num_tokens() && layout.split.total() == num_tokens(),
              "the layout was planned for this layer");
  std::optional<codec::Equalization> map;
  if (layout.equalized) {
    map = MeasureEqualization(pool);
    std::memcpy(block.data(), map->mean.data(), layout.map_bytes() / 2);
    std::memcpy(block.data() + layout.map_bytes() / 2, map->scale.data(), layout.map_bytes() / 2);
  }
  ForEachHead(pool, [&](uint32_t kv_head) { WriteHead(layout, map ? &*map : nullptr, kv_head, block); });
}

void LayerCache::WriteHead(const codec::LayerBlockLayout& layout, const codec::Equalization* map, uint32_t kv_head,
                           std::span<std::byte> block) const {
  constexpr uint32_t kBatch = 128;
  const codec::LayerBlockHead<std::byte> head = codec::HeadOf(layout, block, kv_head);
  LoadRun(sinks_, kv_head, 0, layout.split.num_sinks, As<Half>(head.sink_keys).data(),
          As<Half>(head.sink_values).data());
  const size_t row_bytes = codec::RowCodeBytes(layout.codec, shape_.head_dim);
  for (uint32_t done = 0; done < layout.split.num_encoded; done += kBatch) {
    const uint32_t count = std::min(kBatch, layout.split.num_encoded - done);
    const auto rows = [&](std::span<std::byte> codes, std::span<std::byte> scales, std::span<std::byte> zeros) {
      return RowsOf<codec::TokenRows>(row_bytes, As<uint8_t>(codes), As<Half>(scales), As<Half>(zeros), done, count);
    };
    EncodeRows(map, layout.codec, kv_head, done, count, rows(head.key_codes, head.key_scales, head.key_zeros),
               rows(head.value_codes, head.value_scales, head.value_zeros));
  }
  LoadRun(residual_, kv_head, layout.split.num_encoded, layout.split.num_tail, As<Half>(head.tail_keys).data(),
          As<Half>(head.tail_values).data());
}

Status LayerCache::AdoptBlock(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  if (num_tokens() > 0) {
    return {StatusCode::kInvalidArgument, "the layer already holds " + std::to_string(num_tokens()) + " tokens"};
  }
  const bool same_shape = layout.shape == shape_ && layout.codec == precision_.codec;
  if (!same_shape || layout.split.num_sinks > precision_.num_sinks) {
    return {StatusCode::kMismatch, "a layer block of another shape, codec or number of sinks"};
  }
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    KVANT_RETURN_IF_ERROR(CheckHead(codec::HeadOf(layout, block, kv_head), kv_head));
  }
  if (layout.equalized) {
    KVANT_ASSIGN_OR_RETURN(equalization_, ReadMap(layout, block));
  }
  KVANT_RETURN_IF_ERROR(sinks_.Extend(layout.split.num_sinks));
  KVANT_RETURN_IF_ERROR(encoded_.Extend(layout.split.num_encoded));
  KVANT_RETURN_IF_ERROR(residual_.Extend(layout.split.num_tail));
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    AdoptHead(layout, kv_head, block);
  }
  return OkStatus();
}

void LayerCache::AdoptHead(const codec::LayerBlockLayout& layout, uint32_t kv_head, std::span<const std::byte> block) {
  const codec::LayerBlockHead<const std::byte> head = codec::HeadOf(layout, block, kv_head);
  StoreRun(sinks_, kv_head, 0, layout.split.num_sinks, As<const Half>(head.sink_keys).data(),
           As<const Half>(head.sink_values).data(), shape_.head_dim);
  const size_t row_bytes = codec::RowCodeBytes(layout.codec, shape_.head_dim);
  ForEachPiece(encoded_.layout().capacity, 0, layout.split.num_encoded,
               [&](uint32_t page, uint32_t slot, uint32_t count, uint32_t done) {
                 const auto rows = [&](std::span<const std::byte> codes, std::span<const std::byte> scales,
                                       std::span<const std::byte> zeros) {
                   return RowsOf<codec::ConstTokenRows>(row_bytes, As<const uint8_t>(codes), As<const Half>(scales),
                                                        As<const Half>(zeros), done, count);
                 };
                 rows_->store(encoded_.layout(), encoded_.record(page, kv_head), slot, count,
                              rows(head.key_codes, head.key_scales, head.key_zeros),
                              rows(head.value_codes, head.value_scales, head.value_zeros));
               });
  StoreRun(residual_, kv_head, 0, layout.split.num_tail, As<const Half>(head.tail_keys).data(),
           As<const Half>(head.tail_values).data(), shape_.head_dim);
}

}  // namespace kvant::cache
