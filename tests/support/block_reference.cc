#include "support/block_reference.h"

#include <algorithm>
#include <cstring>

#include "kvant/codec/equalization.h"

namespace kvant::test {
namespace {

class Lcg {
 public:
  explicit Lcg(uint64_t seed) : state_(seed * 2 + 1) {}
  // In [-1, 1), 24 bits.
  float Next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(state_ >> 40) * 0x1p-23F - 1.0F;
  }

 private:
  uint64_t state_;
};

float Special(uint32_t token, uint32_t channel, float ordinary) {
  const float sign = channel % 2 == 0 ? 1.0F : -1.0F;
  switch (token % 16) {
    case 4: return 0.0F;
    case 5: return 9.0F;
    case 6: return 0x1p-22F * sign;
    case 7: return channel == 3 ? 60000.0F : ordinary;
    default: return ordinary;
  }
}

template <typename T>
std::span<const T> View(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
std::span<T> View(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

codec::Equalization MeasureMap(const codec::LayerBlockLayout& layout, const LayerRows& rows) {
  codec::EqualizationBuilder builder(layout.shape.num_kv_heads, layout.shape.head_dim);
  for (uint32_t h = 0; h < rows.num_kv_heads; ++h) {
    for (uint32_t t = layout.split.num_sinks; t < rows.num_tokens; ++t) {
      codec::AddKey(std::span(rows.keys).subspan(rows.Row(h, t), layout.shape.head_dim), builder.stats(h));
    }
  }
  return builder.Finish(rows.num_tokens - layout.split.num_sinks);
}

void CopyRows(const Half* src, std::span<std::byte> section) {
  if (!section.empty()) {
    std::memcpy(section.data(), src, section.size());
  }
}

codec::TokenRows RowsOf(std::span<std::byte> codes, std::span<std::byte> scales, std::span<std::byte> zeros) {
  return {View<uint8_t>(codes), View<Half>(scales), View<Half>(zeros)};
}

std::vector<Half> EqualizedKeys(const codec::LayerBlockLayout& layout, const LayerRows& rows, uint32_t h,
                                const codec::Equalization& map) {
  const Half* first = rows.keys.data() + rows.Row(h, layout.split.num_sinks);
  std::vector<Half> keys(first, first + size_t{layout.split.num_encoded} * rows.head_dim);
  for (uint32_t t = 0; t < layout.split.num_encoded && layout.equalized; ++t) {
    const std::span<Half> row = std::span(keys).subspan(size_t{t} * rows.head_dim, rows.head_dim);
    codec::EqualizeRow(row, map.MeanOf(h), map.ScaleOf(h), row);
  }
  return keys;
}

// Rows of one section as fp32, each handed to `put(token in section, row)`.
template <typename Put>
void DecodeSection(codec::TokenCodec codec, uint32_t head_dim, uint32_t count, std::span<const std::byte> codes,
                   std::span<const std::byte> scales, std::span<const std::byte> zeros, Put&& put) {
  std::vector<float> row(head_dim);
  const size_t row_bytes = codec::RowCodeBytes(codec, head_dim);
  for (uint32_t t = 0; t < count; ++t) {
    codec::DecodeRow(codec, head_dim, View<uint8_t>(codes).data() + t * row_bytes,
                     codec::HasScale(codec) ? View<Half>(scales)[t] : Half{},
                     codec::HasZero(codec) ? View<Half>(zeros)[t] : Half{}, row);
    put(t, std::span<float>(row));
  }
}

}  // namespace

LayerRows MakeRows(const codec::CacheShape& shape, uint32_t num_tokens, uint64_t seed) {
  LayerRows rows{shape.num_kv_heads, num_tokens, shape.head_dim, {}, {}};
  Lcg random(seed);
  for (uint32_t h = 0; h < shape.num_kv_heads; ++h) {
    std::vector<float> offset(shape.head_dim);
    std::vector<float> scale(shape.head_dim);
    for (uint32_t c = 0; c < shape.head_dim; ++c) {
      offset[c] = 4.0F * random.Next();
      scale[c] = c == 5 ? 40.0F : 1.0F + 0.5F * random.Next();
    }
    for (uint32_t t = 0; t < num_tokens; ++t) {
      for (uint32_t c = 0; c < shape.head_dim; ++c) {
        rows.keys.push_back(ToHalf(Special(t, c, offset[c] + scale[c] * random.Next())));
        rows.values.push_back(ToHalf(Special(t + 8, c, random.Next())));
      }
    }
  }
  return rows;
}

void EncodeBlockRef(const codec::LayerBlockLayout& layout, const LayerRows& rows, std::span<std::byte> block) {
  const codec::TokenSplit& split = layout.split;
  codec::Equalization map;
  if (layout.equalized) {
    map = MeasureMap(layout, rows);
    CopyRows(map.mean.data(), block.first(layout.map_bytes() / 2));
    CopyRows(map.scale.data(), block.subspan(layout.map_bytes() / 2, layout.map_bytes() / 2));
  }
  for (uint32_t h = 0; h < layout.shape.num_kv_heads; ++h) {
    const codec::LayerBlockHead<std::byte> head = codec::HeadOf(layout, block, h);
    const uint32_t tail = split.num_sinks + split.num_encoded;
    CopyRows(rows.keys.data() + rows.Row(h, 0), head.sink_keys);
    CopyRows(rows.values.data() + rows.Row(h, 0), head.sink_values);
    CopyRows(rows.keys.data() + rows.Row(h, tail), head.tail_keys);
    CopyRows(rows.values.data() + rows.Row(h, tail), head.tail_values);
    const std::vector<Half> keys = EqualizedKeys(layout, rows, h, map);
    codec::EncodeRowsRef(layout.codec, rows.head_dim, keys.data(), rows.head_dim, split.num_encoded,
                         RowsOf(head.key_codes, head.key_scales, head.key_zeros));
    codec::EncodeRowsRef(layout.codec, rows.head_dim, rows.values.data() + rows.Row(h, split.num_sinks), rows.head_dim,
                         split.num_encoded, RowsOf(head.value_codes, head.value_scales, head.value_zeros));
  }
}

DecodedLayer DecodeBlockRef(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  const uint32_t head_dim = layout.shape.head_dim;
  const codec::TokenSplit& split = layout.split;
  const std::span<const Half> map = View<Half>(block.first(layout.map_bytes()));
  DecodedLayer out;
  const auto append = [](std::vector<float>& to, std::span<const float> row) {
    to.insert(to.end(), row.begin(), row.end());
  };
  constexpr codec::TokenCodec kExact = codec::TokenCodec::kFp16;
  for (uint32_t h = 0; h < layout.shape.num_kv_heads; ++h) {
    const auto head = codec::HeadOf(layout, block, h);
    const auto add_key = [&](uint32_t, std::span<float> row) { append(out.keys, row); };
    const auto add_value = [&](uint32_t, std::span<float> row) { append(out.values, row); };
    const auto restore_key = [&](uint32_t, std::span<float> row) {
      if (layout.equalized) {
        const auto mean = map.subspan(size_t{h} * head_dim, head_dim);
        const auto scale = map.subspan(map.size() / 2 + size_t{h} * head_dim, head_dim);
        codec::RestoreRow(row, mean, scale, row);
      }
      append(out.keys, row);
    };
    DecodeSection(kExact, head_dim, split.num_sinks, head.sink_keys, {}, {}, add_key);
    DecodeSection(layout.codec, head_dim, split.num_encoded, head.key_codes, head.key_scales, head.key_zeros,
                  restore_key);
    DecodeSection(kExact, head_dim, split.num_tail, head.tail_keys, {}, {}, add_key);
    DecodeSection(kExact, head_dim, split.num_sinks, head.sink_values, {}, {}, add_value);
    DecodeSection(layout.codec, head_dim, split.num_encoded, head.value_codes, head.value_scales, head.value_zeros,
                  add_value);
    DecodeSection(kExact, head_dim, split.num_tail, head.tail_values, {}, {}, add_value);
  }
  return out;
}

}  // namespace kvant::test
