#include "kvant/codec/pair_block.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kvant/base/check.h"

namespace kvant::codec {
namespace {

// The fields in order; no padding inside.
struct Fields {
  uint8_t version;
  uint8_t value_bits;
  uint16_t page_tokens;
  uint16_t value_group;
  uint8_t key_rule;
  uint8_t value_rule;
  uint8_t rotated_values;
  uint8_t pairs;
  uint16_t bits_per_key;
  uint8_t one_bit;
  uint8_t reserved[3];
};
static_assert(sizeof(Fields) == kPairFormatBytes, "written as it lies");

Status CheckAtMost(const char* name, uint32_t value, uint32_t largest) {
  return value <= largest ? OkStatus()
                          : Status(StatusCode::kInvalidArgument, std::string(name) + " " + std::to_string(value) +
                                                                     ", must be at most " + std::to_string(largest));
}

}  // namespace

size_t PairBlockFormat::page_bytes() const {
  // Sizes depend on the sum of the widths alone: any map of that sum will do.
  const size_t keys = size_t{bits_per_key} * format.page_tokens / 8 + size_t{4} * format.head_dim;
  const size_t values = size_t{format.page_tokens} * format.head_dim * format.value_bits / 8 +
                        size_t{4} * format.page_tokens * format.ValueGroups();
  return keys + values;
}

PairBlockFormat Int4PageFormat(uint32_t head_dim) {
  constexpr uint32_t kBits = WidthMap::kMaxKeyBits;
  const PairFormat format{
      .head_dim = head_dim, .page_tokens = kInt4PageTokens, .value_bits = kBits, .value_group = head_dim};
  return {format, PairLayout::kHalfSplit, false, kBits * head_dim};
}

WidthMap Int4PageMap(uint32_t head_dim) {
  return {PairLayout::kHalfSplit, std::vector<uint8_t>(head_dim / 2, uint8_t{WidthMap::kMaxKeyBits})};
}

PairBlockFormat PairBlockFormatOf(const PairPrecision& precision, uint32_t head_dim, PairLayout pairs,
                                  std::span<const WidthMap> maps) {
  PairBlockFormat block{precision.FormatOf(head_dim), pairs, precision.rotate_values, 0};
  for (const WidthMap& map : maps) {
    KVANT_CHECK(map.head_dim() == head_dim && map.BitsPerKey() == maps[0].BitsPerKey(), "maps of equal bits");
    block.bits_per_key = map.BitsPerKey();
  }
  return block;
}

namespace {

void PutFormat(const PairBlockFormat& block, std::span<std::byte> bytes) {
  const PairFormat& format = block.format;
  const Fields fields{kPairPageVersion,
                      static_cast<uint8_t>(format.value_bits),
                      static_cast<uint16_t>(format.page_tokens),
                      static_cast<uint16_t>(format.value_group),
                      static_cast<uint8_t>(format.key_rule),
                      static_cast<uint8_t>(format.value_rule),
                      static_cast<uint8_t>(block.rotated_values),
                      static_cast<uint8_t>(block.pairs),
                      static_cast<uint16_t>(block.bits_per_key),
                      static_cast<uint8_t>(format.one_bit),
                      {}};
  std::memcpy(bytes.data(), &fields, sizeof fields);
}

void PutWidthMap(const WidthMap& map, std::span<std::byte> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  for (size_t i = 0; i < map.widths.size(); ++i) {
    bytes[i / 2] |= static_cast<std::byte>(map.widths[i] << (i % 2 * 4));
  }
}

Result<WidthMap> TakeWidthMap(const PairBlockFormat& block, std::span<const std::byte> bytes) {
  WidthMap map{block.pairs, std::vector<uint8_t>(block.format.head_dim / 2)};
  for (size_t i = 0; i < map.widths.size(); ++i) {
    map.widths[i] = std::to_integer<uint8_t>(bytes[i / 2] >> (i % 2 * 4) & std::byte{0xF});
  }
  const bool known = std::all_of(map.widths.begin(), map.widths.end(),
                                 [](uint8_t width) { return width >= 1 && width <= WidthMap::kMaxKeyBits; });
  if (!known || map.BitsPerKey() != block.bits_per_key) {
    return Status(StatusCode::kCorruption, "a width map of other widths or bits than the pages have");
  }
  return map;
}

/// Where a KV head's map lies behind the format.
template <typename Byte>
std::span<Byte> MapOf(const PairBlockFormat& block, std::span<Byte> bytes, size_t kv_head) {
  return bytes.subspan(kPairFormatBytes + kv_head * block.map_bytes(), block.map_bytes());
}

}  // namespace

void PutPairMaps(const PairBlockFormat& block, std::span<const WidthMap> maps, std::span<std::byte> bytes) {
  PutFormat(block, bytes);
  for (size_t kv_head = 0; kv_head < maps.size(); ++kv_head) {
    PutWidthMap(maps[kv_head], MapOf(block, bytes, kv_head));
  }
}

Result<std::vector<WidthMap>> TakeWidthMaps(const PairBlockFormat& block, uint32_t num_kv_heads,
                                            std::span<const std::byte> bytes) {
  std::vector<WidthMap> maps;
  for (uint32_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    KVANT_ASSIGN_OR_RETURN(WidthMap map, TakeWidthMap(block, MapOf(block, bytes, kv_head)));
    maps.push_back(std::move(map));
  }
  return maps;
}

Result<PairBlockFormat> TakePairFormat(uint32_t head_dim, std::span<const std::byte> bytes) {
  Fields fields;
  std::memcpy(&fields, bytes.data(), sizeof fields);
  if (fields.version != kPairPageVersion) {
    return Status(StatusCode::kVersionUnsupported, "pair pages of version " + std::to_string(fields.version) +
                                                       "; this build knows " + std::to_string(kPairPageVersion));
  }
  KVANT_RETURN_IF_ERROR(CheckAtMost("key rule", fields.key_rule, 1));
  KVANT_RETURN_IF_ERROR(CheckAtMost("value rule", fields.value_rule, 1));
  KVANT_RETURN_IF_ERROR(CheckAtMost("values turned", fields.rotated_values, 1));
  KVANT_RETURN_IF_ERROR(CheckAtMost("pair layout", fields.pairs, 1));
  KVANT_RETURN_IF_ERROR(CheckAtMost("one-bit rule", fields.one_bit, 2));
  for (const uint8_t reserved : fields.reserved) {
    KVANT_RETURN_IF_ERROR(CheckAtMost("reserved", reserved, 0));
  }
  const PairBlockFormat block{
      {head_dim, fields.page_tokens, fields.value_bits, fields.value_group, static_cast<PairRule>(fields.key_rule),
       static_cast<PairRule>(fields.value_rule), static_cast<OneBitRule>(fields.one_bit)},
      static_cast<PairLayout>(fields.pairs),
      fields.rotated_values == 1,
      fields.bits_per_key};
  const WidthMap any{block.pairs, std::vector<uint8_t>(head_dim / 2, 1)};
  KVANT_RETURN_IF_ERROR(CheckPairFormat(block.format, any));
  if (block.bits_per_key < head_dim || block.bits_per_key > head_dim * WidthMap::kMaxKeyBits ||
      block.bits_per_key % 2 != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "key bits a token " + std::to_string(block.bits_per_key) + ", must be even and 1 to 4 a channel");
  }
  return block;
}

}  // namespace kvant::codec
