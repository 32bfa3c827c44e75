#include "kvant/codec/token_page.h"

#include <cstring>

#include "kvant/base/check.h"

namespace kvant::codec {
namespace {

constexpr size_t kAlignment = 64;

size_t KeyBytes(TokenCodec codec, uint32_t head_dim, uint32_t tokens) { return RowCodeBytes(codec, head_dim) * tokens; }

size_t ValueBytes(TokenCodec codec, uint32_t value_channels, uint32_t tokens) {
  return size_t{value_channels} * tokens * static_cast<size_t>(CodeBits(codec)) / 8;
}

Half* HalfAt(std::byte* record, size_t offset) { return reinterpret_cast<Half*>(record + offset); }
const Half* HalfAt(const std::byte* record, size_t offset) { return reinterpret_cast<const Half*>(record + offset); }

// A value code lives in byte `index` of the values, in its low or high half.
struct ValuePlace {
  size_t index;
  int shift;
};

ValuePlace PlaceOfValue(const TokenPageLayout& layout, uint32_t token, uint32_t channel) {
  if (layout.codec == TokenCodec::kInt8) {
    return {(size_t{token / 4} * layout.value_channels + channel) * 4 + token % 4, 0};
  }
  return {(size_t{token / 8} * layout.value_channels + channel) * 4 + token % 4, token % 8 < 4 ? 0 : 4};
}

int RowNibbleShift(uint32_t channel) { return channel % 8 < 4 ? 0 : 4; }
size_t RowNibbleByte(uint32_t channel) { return 4 * (channel / 8) + channel % 4; }

void StoreFp16(const TokenPageLayout& layout, std::byte* record, uint32_t token, const uint8_t* key,
               const uint8_t* value) {
  std::byte* tile = record + (token / kTileTokens) * layout.key_tile_bytes;
  for (uint32_t c = 0; c < layout.head_dim; ++c) {
    std::memcpy(tile + (size_t{c} * kTileTokens + token % kTileTokens) * 2, key + 2 * c, 2);
  }
  std::memcpy(record + layout.values + size_t{token} * layout.value_channels * 2, value, size_t{2} * layout.head_dim);
}

void LoadFp16(const TokenPageLayout& layout, const std::byte* record, uint32_t token, uint8_t* key, uint8_t* value) {
  const std::byte* tile = record + (token / kTileTokens) * layout.key_tile_bytes;
  for (uint32_t c = 0; c < layout.head_dim; ++c) {
    std::memcpy(key + 2 * c, tile + (size_t{c} * kTileTokens + token % kTileTokens) * 2, 2);
  }
  if (value == nullptr) {
    return;
  }
  std::memcpy(value, record + layout.values + size_t{token} * layout.value_channels * 2, size_t{2} * layout.head_dim);
}

uint8_t RowCode(const TokenPageLayout& layout, const uint8_t* row, uint32_t channel) {
  if (layout.codec == TokenCodec::kInt8) {
    return row[channel];
  }
  return (row[RowNibbleByte(channel)] >> RowNibbleShift(channel)) & 0xFU;
}

void StoreCodes(const TokenPageLayout& layout, std::byte* record, uint32_t token, const uint8_t* key,
                const uint8_t* value) {
  const size_t row_bytes = RowCodeBytes(layout.codec, layout.head_dim);
  for (uint32_t group = 0; group < row_bytes / 4; ++group) {
    std::memcpy(record + KeyUnitOffset(layout, token, group), key + size_t{4} * group, 4);
  }
  auto* values = reinterpret_cast<uint8_t*>(record + layout.values);
  const auto mask = static_cast<uint8_t>((1U << CodeBits(layout.codec)) - 1U);
  for (uint32_t c = 0; c < layout.head_dim; ++c) {
    const ValuePlace place = PlaceOfValue(layout, token, c);
    const auto kept = static_cast<uint8_t>(values[place.index] & ~(mask << place.shift));
    values[place.index] = static_cast<uint8_t>(kept | (RowCode(layout, value, c) << place.shift));
  }
}

void LoadCodes(const TokenPageLayout& layout, const std::byte* record, uint32_t token, uint8_t* key, uint8_t* value) {
  const size_t row_bytes = RowCodeBytes(layout.codec, layout.head_dim);
  for (uint32_t group = 0; group < row_bytes / 4; ++group) {
    std::memcpy(key + size_t{4} * group, record + KeyUnitOffset(layout, token, group), 4);
  }
  if (value == nullptr) {
    return;
  }
  const auto* values = reinterpret_cast<const uint8_t*>(record + layout.values);
  const auto mask = static_cast<uint8_t>((1U << CodeBits(layout.codec)) - 1U);
  std::memset(value, 0, row_bytes);
  for (uint32_t c = 0; c < layout.head_dim; ++c) {
    const ValuePlace place = PlaceOfValue(layout, token, c);
    const auto code = static_cast<uint8_t>((values[place.index] >> place.shift) & mask);
    if (layout.codec == TokenCodec::kInt8) {
      value[c] = code;
    } else {
      value[RowNibbleByte(c)] |= static_cast<uint8_t>(code << RowNibbleShift(c));
    }
  }
}

// Scale and zero of row `row`, from `slot` of a record.
void LoadParams(TokenCodec codec, const Half* scales, const Half* zeros, uint32_t slot, uint32_t row, TokenRows rows) {
  rows.scales[row] = scales[slot];
  if (HasZero(codec)) {
    rows.zeros[row] = zeros[slot];
  }
}

}  // namespace

TokenPageLayout TokenPageLayout::Make(TokenCodec codec, uint32_t head_dim, uint32_t capacity) {
  KVANT_CHECK(CheckHeadDim(head_dim).ok(), "the model loader checks head dimensions");
  KVANT_CHECK(capacity > 0 && capacity % kTileTokens == 0, "a page is made of whole tiles");
  TokenPageLayout layout;
  layout.codec = codec;
  layout.head_dim = head_dim;
  layout.capacity = capacity;
  layout.value_channels = static_cast<uint32_t>(RoundUp(head_dim, 16));
  layout.key_tile_bytes = KeyBytes(codec, head_dim, kTileTokens);
  size_t end = KeyBytes(codec, head_dim, capacity);
  const auto place = [&](size_t bytes) {
    const size_t begin = RoundUp(end, kAlignment);
    end = begin + bytes;
    return begin;
  };
  const size_t param_bytes = sizeof(Half) * capacity;
  layout.values = place(ValueBytes(codec, layout.value_channels, capacity));
  layout.key_scales = place(HasScale(codec) ? param_bytes : 0);
  layout.key_zeros = place(HasZero(codec) ? param_bytes : 0);
  layout.value_scales = place(HasScale(codec) ? param_bytes : 0);
  layout.value_zeros = place(HasZero(codec) ? param_bytes : 0);
  layout.record_bytes = RoundUp(end, kAlignment);
  return layout;
}

void StoreRowsRef(const TokenPageLayout& layout, std::byte* record, uint32_t first, uint32_t num_tokens,
                  ConstTokenRows keys, ConstTokenRows values) {
  KVANT_CHECK(first + num_tokens <= layout.capacity, "the cache asks only for free slots");
  const size_t row_bytes = RowCodeBytes(layout.codec, layout.head_dim);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    const uint8_t* key = keys.codes.data() + i * row_bytes;
    const uint8_t* value = values.codes.data() + i * row_bytes;
    if (layout.codec == TokenCodec::kFp16) {
      StoreFp16(layout, record, first + i, key, value);
      continue;
    }
    StoreCodes(layout, record, first + i, key, value);
    HalfAt(record, layout.key_scales)[first + i] = keys.scales[i];
    HalfAt(record, layout.value_scales)[first + i] = values.scales[i];
    if (HasZero(layout.codec)) {
      HalfAt(record, layout.key_zeros)[first + i] = keys.zeros[i];
      HalfAt(record, layout.value_zeros)[first + i] = values.zeros[i];
    }
  }
}

void LoadRowsRef(const TokenPageLayout& layout, const std::byte* record, uint32_t first, uint32_t num_tokens,
                 TokenRows keys, TokenRows values) {
  KVANT_CHECK(first + num_tokens <= layout.capacity, "the cache asks only for slots that exist");
  const size_t row_bytes = RowCodeBytes(layout.codec, layout.head_dim);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    uint8_t* key = keys.codes.data() + i * row_bytes;
    uint8_t* value = values.codes.empty() ? nullptr : values.codes.data() + i * row_bytes;
    if (layout.codec == TokenCodec::kFp16) {
      LoadFp16(layout, record, first + i, key, value);
      continue;
    }
    LoadCodes(layout, record, first + i, key, value);
    LoadParams(layout.codec, HalfAt(record, layout.key_scales), HalfAt(record, layout.key_zeros), first + i, i, keys);
    if (value != nullptr) {
      LoadParams(layout.codec, HalfAt(record, layout.value_scales), HalfAt(record, layout.value_zeros), first + i, i,
                 values);
    }
  }
}

}  // namespace kvant::codec
