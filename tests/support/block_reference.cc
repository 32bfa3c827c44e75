#include "support/block_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvant/codec/equalization.h"
#include "kvant/codec/progressive.h"

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

// The exact rows of one tier, keys equalized where the tier's codec is not exact and there is a map.
struct TierSource {
  std::vector<Half> keys;
  std::vector<Half> values;
  uint32_t count = 0;

  void Drop(uint32_t first, uint32_t rows, uint32_t head_dim) {
    const auto begin = static_cast<ptrdiff_t>(size_t{first} * head_dim);
    const auto elements = static_cast<ptrdiff_t>(size_t{rows} * head_dim);
    keys.erase(keys.begin() + begin, keys.begin() + begin + elements);
    values.erase(values.begin() + begin, values.begin() + begin + elements);
    count -= rows;
  }
};

TierSource RowsOfTier(const codec::LayerBlockLayout& layout, const LayerRows& rows, uint32_t h, codec::Tier tier,
                      std::span<const codec::Tier> ids, const codec::Equalization& map) {
  TierSource source;
  for (uint32_t i = 0; i < layout.split.num_encoded; ++i) {
    if (!ids.empty() && ids[i] != tier) {
      continue;
    }
    const size_t at = rows.Row(h, layout.split.num_sinks + i);
    std::vector<Half> key(rows.keys.begin() + static_cast<ptrdiff_t>(at),
                          rows.keys.begin() + static_cast<ptrdiff_t>(at + rows.head_dim));
    if (layout.equalized && (layout.progressive || codec::HasScale(layout.codec_of(tier)))) {
      codec::EqualizeRow(key, map.MeanOf(h), map.ScaleOf(h), key);
    }
    source.keys.insert(source.keys.end(), key.begin(), key.end());
    source.values.insert(source.values.end(), rows.values.begin() + static_cast<ptrdiff_t>(at),
                         rows.values.begin() + static_cast<ptrdiff_t>(at + rows.head_dim));
    ++source.count;
  }
  return source;
}

// Element by element from the rules of docs/format/token-tiers.md.
void EncodeProgressiveRef(codec::Tier tier, uint32_t head_dim, const std::vector<Half>& src, uint32_t count,
                          std::span<std::byte> codes, std::span<std::byte> scales) {
  for (uint32_t t = 0; t < count; ++t) {
    std::vector<uint8_t> row(head_dim);
    Half scale;
    codec::EncodeRowsRef(codec::TokenCodec::kInt8, head_dim, &src[size_t{t} * head_dim], head_dim, 1,
                         {row, std::span(&scale, 1), {}});
    View<Half>(scales)[t] = scale;
    std::byte* to = &codes[t * codec::ProgressiveFormat(tier, head_dim).code_bytes];
    std::fill_n(to, codec::ProgressiveFormat(tier, head_dim).code_bytes, std::byte{0});
    const float inverse = ToFloat(scale) == 0 ? 0 : 1 / ToFloat(scale);
    for (uint32_t c = 0; c < head_dim; ++c) {
      const float x = ToFloat(src[size_t{t} * head_dim + c]);
      const float left = (x * inverse - (static_cast<float>(row[c]) - 128)) * 256;
      const auto rest = static_cast<uint8_t>(std::min(127.0F, std::nearbyint(left)) + 128);
      if (tier == codec::Tier::kInt4) {
        to[c / 8 * 4 + c % 4] |= static_cast<std::byte>(row[c] >> 4 << (c % 8 < 4 ? 0 : 4));
      } else {
        to[c] = std::byte{row[c]};
      }
      if (tier == codec::Tier::kFp16) {
        to[head_dim + c] = std::byte{rest};
      }
    }
  }
}

// Keys not equalized.
void EncodeInt4PagesRef(const TierSource& exact, const codec::LayerBlockLayout& layout, std::span<std::byte> pages) {
  const uint32_t head_dim = layout.shape.head_dim;
  const codec::PairFormat format = codec::Int4PageFormat(head_dim).format;
  const codec::WidthMap map = codec::Int4PageMap(head_dim);
  for (uint32_t page = 0; page < layout.int4_pages->count; ++page) {
    const size_t at = (layout.int4_pages->rows_before + size_t{page} * format.page_tokens) * head_dim;
    codec::SerializePairPage(format, map,
                             codec::EncodePairPageRef(format, map, &exact.keys[at], &exact.values[at], head_dim),
                             pages.subspan(page * layout.page_bytes(), layout.page_bytes()));
  }
}

void EncodeTierRef(const codec::LayerBlockLayout& layout, codec::Tier tier, const TierSource& source,
                   const codec::LayerBlockTier<std::byte>& to) {
  const codec::TokenCodec codec = layout.codec_of(tier);
  const uint32_t head_dim = layout.shape.head_dim;
  if (layout.progressive) {
    EncodeProgressiveRef(tier, head_dim, source.keys, source.count, to.key_codes, to.key_scales);
    EncodeProgressiveRef(tier, head_dim, source.values, source.count, to.value_codes, to.value_scales);
    return;
  }
  codec::EncodeRowsRef(codec, head_dim, source.keys.data(), head_dim, source.count,
                       RowsOf(to.key_codes, to.key_scales, to.key_zeros));
  codec::EncodeRowsRef(codec, head_dim, source.values.data(), head_dim, source.count,
                       RowsOf(to.value_codes, to.value_scales, to.value_zeros));
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

template <typename PutKey, typename PutValue>
void DecodeInt4Pages(const codec::LayerBlockLayout& layout, std::span<const std::byte> pages, PutKey&& put_key,
                     PutValue&& put_value) {
  const uint32_t head_dim = layout.shape.head_dim;
  const codec::PairFormat format = codec::Int4PageFormat(head_dim).format;
  std::vector<float> keys(size_t{format.page_tokens} * head_dim);
  std::vector<float> values(keys.size());
  for (uint32_t page = 0; page < layout.int4_pages->count; ++page) {
    const std::span<const std::byte> bytes = pages.subspan(page * layout.page_bytes(), layout.page_bytes());
    codec::DecodePairPageRef(format, codec::ParsePairPage(format, codec::Int4PageMap(head_dim), bytes), keys, values);
    for (uint32_t t = 0; t < format.page_tokens; ++t) {
      put_key(page * format.page_tokens + t, std::span(keys).subspan(size_t{t} * head_dim, head_dim));
      put_value(page * format.page_tokens + t, std::span(values).subspan(size_t{t} * head_dim, head_dim));
    }
  }
}

template <typename Put>
void DecodeProgressive(codec::Tier tier, uint32_t head_dim, std::span<const std::byte> codes,
                       std::span<const std::byte> scales, Put&& put) {
  std::vector<float> row(head_dim);
  const size_t row_bytes = codec::ProgressiveFormat(tier, head_dim).code_bytes;
  for (uint32_t t = 0; t * sizeof(Half) < scales.size(); ++t) {
    const float scale = ToFloat(View<Half>(scales)[t]);
    const uint8_t* at = View<uint8_t>(codes).data() + t * row_bytes;
    for (uint32_t c = 0; c < head_dim; ++c) {
      float code = tier == codec::Tier::kInt4
                       ? static_cast<float>(at[c / 8 * 4 + c % 4] >> (c % 8 < 4 ? 0 : 4) & 15) * 16 + 7.5F
                       : at[c];
      if (tier == codec::Tier::kFp16) {
        code += (static_cast<float>(at[head_dim + c]) - 128) / 256;
      }
      row[c] = scale * (code - 128);
    }
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

void EncodeBlockRef(const codec::LayerBlockLayout& layout, const LayerRows& rows, std::span<std::byte> block,
                    const codec::TierMap* tiers) {
  const codec::TokenSplit& split = layout.split;
  if (layout.tiers) {
    const uint32_t counts[] = {layout.tiers->fp16,
                               layout.tiers->int8,
                               layout.tiers->int4,
                               layout.tiers->dropped,
                               layout.int4_pages.value_or(codec::Int4Pages{}).rows_before,
                               layout.int4_pages.value_or(codec::Int4Pages{}).count};
    std::memcpy(block.data(), counts, layout.counts_bytes());
  }
  codec::Equalization map;
  if (layout.equalized) {
    map = MeasureMap(layout, rows);
    const std::span<std::byte> section = block.subspan(layout.counts_bytes(), layout.map_bytes());
    CopyRows(map.mean.data(), section.first(section.size() / 2));
    CopyRows(map.scale.data(), section.last(section.size() / 2));
  }
  for (uint32_t h = 0; h < layout.shape.num_kv_heads; ++h) {
    const codec::LayerBlockHead<std::byte> head = codec::HeadOf(layout, block, h);
    const uint32_t tail = split.num_sinks + split.num_encoded;
    CopyRows(rows.keys.data() + rows.Row(h, 0), head.sink_keys);
    CopyRows(rows.values.data() + rows.Row(h, 0), head.sink_values);
    CopyRows(rows.keys.data() + rows.Row(h, tail), head.tail_keys);
    CopyRows(rows.values.data() + rows.Row(h, tail), head.tail_values);
    const std::span<const codec::Tier> ids = tiers == nullptr ? std::span<const codec::Tier>() : tiers->OfHead(h);
    if (!head.tier_ids.empty()) {
      codec::PackTierIds(ids, head.tier_ids);
    }
    for (const codec::Tier tier : codec::kStoredTiers) {
      if (layout.counts().of(tier) > 0) {
        TierSource source = RowsOfTier(layout, rows, h, tier, ids, map);
        if (tier == codec::Tier::kInt4 && layout.int4_pages) {
          codec::LayerBlockLayout exact = layout;
          exact.equalized = false;
          EncodeInt4PagesRef(RowsOfTier(exact, rows, h, tier, ids, map), layout, head.pages);
          source.Drop(layout.int4_pages->rows_before, layout.num_int4_paged(), rows.head_dim);
        }
        EncodeTierRef(layout, tier, source, head.tiers[static_cast<size_t>(tier)]);
      }
    }
  }
}

std::vector<float> EncodeUpgradeRef(const codec::UpgradeLayout& layout, const codec::LayerBlockLayout& of,
                                    const LayerRows& rows, const codec::TierMap& from, const codec::TierMap& to,
                                    std::span<std::byte> block) {
  const uint32_t head_dim = layout.shape.head_dim;
  const codec::Equalization map = MeasureMap(of, rows);
  std::vector<float> middles;
  std::vector<float> rests;
  for (uint32_t h = 0; h < layout.shape.num_kv_heads; ++h) {
    const codec::UpgradeHead<std::byte> head = codec::HeadOf(layout, block, h);
    codec::PackTierIds(to.OfHead(h), head.tier_ids);
    const TierSource source = RowsOfTier(of, rows, h, codec::Tier::kInt8, {}, map);
    for (const bool keys : {true, false}) {
      const std::vector<Half>& exact = keys ? source.keys : source.values;
      std::vector<std::byte> fine(size_t{2} * head_dim * source.count);
      std::vector<std::byte> scales(sizeof(Half) * source.count);
      EncodeProgressiveRef(codec::Tier::kFp16, head_dim, exact, source.count, fine, scales);
      std::byte* middle = (keys ? head.key_middles : head.value_middles).data();
      std::byte* rest = (keys ? head.key_rests : head.value_rests).data();
      for (uint32_t t = 0; t < source.count; ++t) {
        const std::byte* row = &fine[size_t{2} * t * head_dim];
        const codec::Tier was = from.OfHead(h)[t];
        const codec::Tier is = to.OfHead(h)[t];
        if (was == codec::Tier::kInt4 && is != was) {
          std::fill_n(middle, codec::RowCodeBytes(codec::TokenCodec::kInt4, head_dim), std::byte{0});
          for (uint32_t c = 0; c < head_dim; ++c) {
            const std::byte low = row[c] & std::byte{15};
            middle[c / 8 * 4 + c % 4] |= low << (c % 8 < 4 ? 0 : 4);
            middles.push_back(std::to_integer<uint8_t>(low));
          }
          middle += codec::RowCodeBytes(codec::TokenCodec::kInt4, head_dim);
        }
        if (is == codec::Tier::kFp16 && is != was) {
          rest = std::copy_n(row + head_dim, head_dim, rest);
          for (uint32_t c = 0; c < head_dim; ++c) {
            rests.push_back(std::to_integer<uint8_t>(row[head_dim + c]));
          }
        }
      }
    }
  }
  middles.insert(middles.end(), rests.begin(), rests.end());
  return middles;
}

std::vector<float> EncodePairBlockRef(const codec::LayerBlockLayout& layout, const std::vector<codec::WidthMap>& maps,
                                      const LayerRows& rows, std::span<std::byte> block) {
  const codec::PairFormat& format = layout.pairs->format;
  const codec::TokenSplit& split = layout.split;
  const size_t page_floats = size_t{format.page_tokens} * rows.head_dim;
  codec::PutPairMaps(*layout.pairs, maps, block);
  std::vector<float> keys(rows.keys.size());
  std::vector<float> values(keys.size());
  ToFloat(rows.keys, keys);
  ToFloat(rows.values, values);
  for (uint32_t h = 0; h < layout.shape.num_kv_heads; ++h) {
    const codec::LayerBlockHead<std::byte> head = codec::HeadOf(layout, block, h);
    const uint32_t tail = split.num_sinks + split.num_encoded;
    CopyRows(rows.keys.data() + rows.Row(h, 0), head.sink_keys);
    CopyRows(rows.values.data() + rows.Row(h, 0), head.sink_values);
    CopyRows(rows.keys.data() + rows.Row(h, tail), head.tail_keys);
    CopyRows(rows.values.data() + rows.Row(h, tail), head.tail_values);
    for (uint32_t page = 0; page < split.num_encoded / format.page_tokens; ++page) {
      const size_t at = rows.Row(h, split.num_sinks + page * format.page_tokens);
      const codec::PairPage encoded =
          codec::EncodePairPageRef(format, maps[h], &rows.keys[at], &rows.values[at], rows.head_dim);
      codec::SerializePairPage(format, maps[h], encoded,
                               head.pages.subspan(page * layout.pairs->page_bytes(), layout.pairs->page_bytes()));
      codec::DecodePairPageRef(format, encoded, std::span(keys).subspan(at, page_floats),
                               std::span(values).subspan(at, page_floats));
    }
  }
  keys.insert(keys.end(), values.begin(), values.end());
  return keys;
}

codec::TierMap RandomTiers(const codec::TierCounts& counts, uint32_t num_kv_heads, uint64_t seed) {
  codec::TierMap map{counts, {}};
  Lcg random(seed);
  for (uint32_t h = 0; h < num_kv_heads; ++h) {
    codec::TierCounts left = counts;
    while (left.total() > 0) {
      const auto tier =
          static_cast<codec::Tier>(static_cast<uint32_t>((random.Next() + 1.0F) * 2.0F) % codec::kNumTiers);
      if (left.of(tier) > 0) {
        map.ids.push_back(tier);
        --left.of(tier);
      }
    }
  }
  return map;
}

DecodedLayer DecodeBlockRef(const codec::LayerBlockLayout& layout, std::span<const std::byte> block) {
  const uint32_t head_dim = layout.shape.head_dim;
  const codec::TokenSplit& split = layout.split;
  const std::span<const Half> map = View<Half>(block.subspan(layout.counts_bytes(), layout.map_bytes()));
  DecodedLayer out;
  const size_t head_floats = size_t{split.total()} * head_dim;
  out.keys.assign(head_floats * layout.shape.num_kv_heads, std::nanf(""));
  out.values = out.keys;
  constexpr codec::TokenCodec kExact = codec::TokenCodec::kFp16;
  for (uint32_t h = 0; h < layout.shape.num_kv_heads; ++h) {
    const auto head = codec::HeadOf(layout, block, h);
    // Rows of a section to the positions first, first + 1, … or, of a tier, to where its ids stand.
    const auto put = [&](std::vector<float>& to, auto position_of, bool restore) {
      return [&to, &map, &layout, position_of, restore, h, head_dim, head_floats](uint32_t t, std::span<float> row) {
        if (restore && layout.equalized) {
          const auto mean = map.subspan(size_t{h} * head_dim, head_dim);
          const auto scale = map.subspan(map.size() / 2 + size_t{h} * head_dim, head_dim);
          codec::RestoreRow(row, mean, scale, row);
        }
        std::copy(row.begin(), row.end(),
                  to.begin() + static_cast<ptrdiff_t>(h * head_floats + size_t{position_of(t)} * head_dim));
      };
    };
    const auto from = [](uint32_t first) { return [first](uint32_t t) { return first + t; }; };
    DecodeSection(kExact, head_dim, split.num_sinks, head.sink_keys, {}, {}, put(out.keys, from(0), false));
    DecodeSection(kExact, head_dim, split.num_sinks, head.sink_values, {}, {}, put(out.values, from(0), false));
    std::vector<codec::Tier> ids(split.num_encoded, codec::TierOf(layout.codec));
    for (const codec::Tier tier : codec::kTiers) {
      if (layout.counts().of(tier) > 0) {
        std::fill(ids.begin(), ids.end(), tier);
      }
    }
    if (!head.tier_ids.empty()) {
      codec::UnpackTierIds(head.tier_ids, ids);
    }
    for (const codec::Tier tier : codec::kStoredTiers) {
      std::vector<uint32_t> positions;
      for (uint32_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == tier) {
          positions.push_back(split.num_sinks + i);
        }
      }
      if (tier == codec::Tier::kInt4 && layout.int4_pages) {
        const uint32_t before = layout.int4_pages->rows_before;
        const auto page_token = [&](uint32_t t) { return positions[before + t]; };
        DecodeInt4Pages(layout, head.pages, put(out.keys, page_token, false), put(out.values, page_token, false));
        positions.erase(positions.begin() + before, positions.begin() + before + layout.num_int4_paged());
      }
      const auto& rows = head.tiers[static_cast<size_t>(tier)];
      const codec::TokenCodec codec = layout.codec_of(tier);
      const auto at = [&](uint32_t t) { return positions[t]; };
      if (layout.progressive) {
        DecodeProgressive(tier, head_dim, rows.key_codes, rows.key_scales, put(out.keys, at, true));
        DecodeProgressive(tier, head_dim, rows.value_codes, rows.value_scales, put(out.values, at, false));
        continue;
      }
      DecodeSection(codec, head_dim, layout.rows_of(tier), rows.key_codes, rows.key_scales, rows.key_zeros,
                    put(out.keys, at, codec::HasScale(codec)));
      DecodeSection(codec, head_dim, layout.rows_of(tier), rows.value_codes, rows.value_scales, rows.value_zeros,
                    put(out.values, at, false));
    }
    const uint32_t tail = split.num_sinks + split.num_encoded;
    DecodeSection(kExact, head_dim, split.num_tail, head.tail_keys, {}, {}, put(out.keys, from(tail), false));
    DecodeSection(kExact, head_dim, split.num_tail, head.tail_values, {}, {}, put(out.values, from(tail), false));
  }
  return out;
}

}  // namespace kvant::test
