#include "kvant/kernels/cuda/device_layout.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kvant/base/check.h"

namespace kvant::kernels::cuda {
namespace {

uint32_t ReadWord(const std::byte* base, size_t word) {
  uint32_t value = 0;
  std::memcpy(&value, base + 4 * word, 4);
  return value;
}

void PutBits(std::byte* base, CodePlace place, uint32_t bits, uint32_t value) {
  const uint32_t mask = ((1U << bits) - 1U) << place.bit;
  const uint32_t word = (ReadWord(base, place.word) & ~mask) | (value << place.bit & mask);
  std::memcpy(base + size_t{4} * place.word, &word, 4);
}

uint32_t GetBits(const std::byte* base, CodePlace place, uint32_t bits) {
  return ReadWord(base, place.word) >> place.bit & ((1U << bits) - 1U);
}

// A row's own codes (codec::RowCodeBytes): fp16 and int8 in channel order, nibbles by groups of eight.
CodePlace PlaceInRow(codec::TokenCodec codec, uint32_t channel) {
  switch (codec::CodeBits(codec)) {
    case 16: return {channel / 2, channel % 2 * 16};
    case 8: return {channel / 4, channel % 4 * 8};
    default: return {channel / 8, channel % 4 * 8 + channel % 8 / 4 * 4};
  }
}

struct TileSide {
  std::byte* codes;
  Half* scale;
  Half* zero;
};

// Keys or values of a tile and the scale and zero of one of its tokens.
TileSide SideOf(codec::TokenCodec codec, uint32_t head_dim, std::byte* tile, bool is_key, uint32_t token) {
  const size_t side = is_key ? 0 : 1;
  auto* scales = reinterpret_cast<Half*>(tile + TokenTileScales(codec, head_dim));
  Half* scale = scales + side * kTileTokens + token;
  return {tile + side * TokenTileCodeBytes(codec, head_dim), scale, scale + 2 * kTileTokens};
}

void StoreRow(codec::TokenCodec codec, uint32_t head_dim, std::byte* tile, bool is_key, uint32_t token,
              codec::ConstTokenRows rows, uint32_t index) {
  const TileSide side = SideOf(codec, head_dim, tile, is_key, token);
  const auto bits = static_cast<uint32_t>(codec::CodeBits(codec));
  const auto* row =
      reinterpret_cast<const std::byte*>(rows.codes.data()) + index * codec::RowCodeBytes(codec, head_dim);
  for (uint32_t c = 0; c < head_dim; ++c) {
    PutBits(side.codes, PlaceOfTokenCode(codec, is_key, token, c), bits, GetBits(row, PlaceInRow(codec, c), bits));
  }
  if (codec::HasScale(codec)) {
    *side.scale = rows.scales[index];
  }
  if (codec::HasZero(codec)) {
    *side.zero = rows.zeros[index];
  }
}

void LoadRow(codec::TokenCodec codec, uint32_t head_dim, const std::byte* tile, bool is_key, uint32_t token,
             codec::TokenRows rows, uint32_t index) {
  const TileSide side = SideOf(codec, head_dim, const_cast<std::byte*>(tile), is_key, token);
  const auto bits = static_cast<uint32_t>(codec::CodeBits(codec));
  auto* row = reinterpret_cast<std::byte*>(rows.codes.data()) + index * codec::RowCodeBytes(codec, head_dim);
  for (uint32_t c = 0; c < head_dim; ++c) {
    PutBits(row, PlaceInRow(codec, c), bits, GetBits(side.codes, PlaceOfTokenCode(codec, is_key, token, c), bits));
  }
  if (codec::HasScale(codec)) {
    rows.scales[index] = *side.scale;
  }
  if (codec::HasZero(codec)) {
    rows.zeros[index] = *side.zero;
  }
}

// First fit, widest first, into the 16-bit halves of word columns. A step is two fields of its width side by side.
std::vector<PairStep> PlaceSteps(std::span<const uint32_t> widths, uint32_t* num_columns) {
  std::vector<PairStep> steps;
  std::vector<uint32_t> used;
  for (const uint32_t width : widths) {
    const auto fits = [&](uint32_t bits) { return bits + 2 * width <= 16 && (bits + 2 * width <= 10 || bits >= 6); };
    auto column = std::find_if(used.begin(), used.end(), fits);
    if (column == used.end()) {
      column = used.insert(used.end(), 0U);
    }
    steps.push_back({static_cast<uint32_t>(column - used.begin()), *column, width});
    *column += 2 * width;
  }
  *num_columns = static_cast<uint32_t>(used.size());
  return steps;
}

CodePlace PlaceOfPairKey(const PairDeviceLayout& layout, uint32_t token_in_block, uint32_t position) {
  const PairStep& step = layout.steps[position / 16];
  const FragmentPlace p = PlaceInFragment(token_in_block % 16, position % 16);
  const uint32_t tile = token_in_block / 16;
  return {((tile * layout.key_columns + step.column) * 32 + p.lane) * 2 + p.upper,
          16 * p.half + step.position + p.block * step.width};
}

uint16_t PowerOfTwoHalf(int exponent) { return static_cast<uint16_t>((exponent + 15) << 10); }

// Calls visit(plane bits, first bit of the code in this plane, byte offset of the plane in the block's values).
template <typename Visit>
void ForEachValuePlane(const codec::PairFormat& format, Visit visit) {
  uint32_t low = 0;
  size_t offset = 0;
  for (uint32_t plane = 0; plane < 2; ++plane) {
    const uint32_t bits = ValuePlaneBits(format.value_bits, plane);
    if (bits == 0) {
      continue;
    }
    visit(bits, low, offset);
    low += bits;
    offset += size_t{512} * ValueGroupsOfPlane(format.head_dim, bits);
  }
}

struct RecordTail {
  Half* key_scales;
  Half* key_zeros;
  Half* value_scales;
  Half* value_zeros;
};
RecordTail TailOf(const PairDeviceLayout& layout, std::byte* record) {
  auto* halves = reinterpret_cast<Half*>(record + layout.tail());
  const uint32_t d = layout.format.head_dim;
  return {halves, halves + d, halves + 2 * size_t{d},
          halves + 2 * size_t{d} + size_t{kPairPageTokens} * layout.format.ValueGroups()};
}

}  // namespace

void StoreTokenTilesRef(codec::TokenCodec codec, uint32_t head_dim, std::span<std::byte> tiles, uint32_t first,
                        uint32_t num_tokens, codec::ConstTokenRows keys, codec::ConstTokenRows values) {
  const size_t tile_bytes = TokenTileBytes(codec, head_dim);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    std::byte* tile = tiles.data() + (first + i) / kTileTokens * tile_bytes;
    StoreRow(codec, head_dim, tile, true, (first + i) % kTileTokens, keys, i);
    StoreRow(codec, head_dim, tile, false, (first + i) % kTileTokens, values, i);
  }
}

void LoadTokenTilesRef(codec::TokenCodec codec, uint32_t head_dim, std::span<const std::byte> tiles, uint32_t first,
                       uint32_t num_tokens, codec::TokenRows keys, codec::TokenRows values) {
  const size_t tile_bytes = TokenTileBytes(codec, head_dim);
  for (uint32_t i = 0; i < num_tokens; ++i) {
    const std::byte* tile = tiles.data() + (first + i) / kTileTokens * tile_bytes;
    LoadRow(codec, head_dim, tile, true, (first + i) % kTileTokens, keys, i);
    LoadRow(codec, head_dim, tile, false, (first + i) % kTileTokens, values, i);
  }
}

Result<PairDeviceLayout> PairDeviceLayout::Make(const codec::PairFormat& format, const codec::WidthMap& map) {
  KVANT_RETURN_IF_ERROR(codec::CheckPairFormat(format, map));
  if (format.head_dim != 64 && format.head_dim != 128 && format.head_dim != 256) {
    return Status{StatusCode::kModelUnsupported,
                  "the CUDA kernels have head dimensions 64, 128 and 256, not " + std::to_string(format.head_dim)};
  }
  if (format.page_tokens != kPairPageTokens) {
    return Status{StatusCode::kInvalidArgument,
                  "the CUDA kernels have pair pages of 128 tokens, not " + std::to_string(format.page_tokens)};
  }
  PairDeviceLayout layout;
  layout.format = format;
  layout.order = codec::ChannelOrder(map);
  for (uint32_t channel = 0; channel < format.head_dim; ++channel) {
    layout.widths.push_back(static_cast<uint8_t>(map.WidthOf(channel)));
  }
  std::vector<uint32_t> widths;
  for (uint32_t step = 0; step < format.head_dim / 16; ++step) {
    widths.push_back(map.WidthOf(layout.order[size_t{step} * 16]));
  }
  layout.steps = PlaceSteps(widths, &layout.key_columns);
  return layout;
}

bool PairDeviceLayout::IsHalfThreeOne() const {
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].width != (i < steps.size() / 2 ? 3U : 1U)) {
      return false;
    }
  }
  return true;
}

size_t PairDeviceLayout::value_block_bytes() const {
  size_t bytes = 0;
  ForEachValuePlane(format, [&](uint32_t bits, uint32_t, size_t) {
    bytes += size_t{512} * ValueGroupsOfPlane(format.head_dim, bits);
  });
  return bytes;
}

PairDeviceMap PairDeviceLayout::DeviceMap() const {
  PairDeviceMap map;
  std::copy(widths.begin(), widths.end(), map.width);
  for (uint32_t position = 0; position < order.size(); ++position) {
    const FragmentPlace place = PlaceInFragment(0, position % 16);
    map.order[place.lane][position / 16] |= order[position] << 8 * (place.half + 2 * place.block);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const PairStep& step = steps[i];
    PairDeviceMap::Step& out = map.steps[i];
    out.offset = step.column * 256;
    out.position = step.position;
    out.width = step.width;
    out.shift = step.position + 2 * step.width <= 10 ? 0 : 6;
    for (uint32_t block = 0; block < 2; ++block) {
      const uint32_t bit = step.position + block * step.width - out.shift;
      out.mask[block] = ((1U << step.width) - 1U) * 0x10001U << bit;
      out.weight[block] = PowerOfTwoHalf(5 - static_cast<int>(bit)) * 0x10001U;
    }
  }
  map.key_columns = key_columns;
  map.block_bytes = static_cast<uint32_t>(block_bytes());
  map.tail = static_cast<uint32_t>(tail());
  map.record_bytes = static_cast<uint32_t>(record_bytes());
  return map;
}

void StorePairRecordRef(const PairDeviceLayout& layout, const codec::PairPage& page, std::span<std::byte> record) {
  KVANT_CHECK(record.size() == layout.record_bytes(), "the caller sized the record by the layout");
  std::fill(record.begin(), record.end(), std::byte{0});
  const uint32_t d = layout.format.head_dim;
  for (uint32_t t = 0; t < kPairPageTokens; ++t) {
    std::byte* block = record.data() + t / 32 * layout.block_bytes();
    for (uint32_t k = 0; k < d; ++k) {
      PutBits(block, PlaceOfPairKey(layout, t % 32, k), layout.steps[k / 16].width,
              page.key_codes[size_t{t} * d + layout.order[k]]);
    }
    ForEachValuePlane(layout.format, [&](uint32_t bits, uint32_t low, size_t offset) {
      for (uint32_t c = 0; c < d; ++c) {
        const uint32_t field = page.value_codes[size_t{t} * d + c] >> low & ((1U << bits) - 1U);
        PutBits(block + 2 * layout.key_tile_bytes() + offset, PlaceOfPairValue(d, bits, t % 32, c), bits, field);
      }
    });
  }
  const RecordTail tail = TailOf(layout, record.data());
  for (uint32_t k = 0; k < d; ++k) {
    tail.key_scales[PlaceOfKeyScale(k)] = page.key_scales[layout.order[k]];
    tail.key_zeros[PlaceOfKeyScale(k)] = page.key_zeros[layout.order[k]];
  }
  const uint32_t groups = layout.format.ValueGroups();
  for (uint32_t i = 0; i < kPairPageTokens * groups; ++i) {
    tail.value_scales[i % groups * kPairPageTokens + i / groups] = page.value_scales[i];
    tail.value_zeros[i % groups * kPairPageTokens + i / groups] = page.value_zeros[i];
  }
}

codec::PairPage LoadPairRecordRef(const PairDeviceLayout& layout, std::span<const std::byte> record) {
  KVANT_CHECK(record.size() == layout.record_bytes(), "the caller sized the record by the layout");
  const uint32_t d = layout.format.head_dim;
  const uint32_t groups = layout.format.ValueGroups();
  const size_t elements = size_t{kPairPageTokens} * d;
  codec::PairPage page{std::vector<uint8_t>(elements),
                       std::vector<Half>(d),
                       std::vector<Half>(d),
                       std::vector<uint8_t>(elements),
                       std::vector<Half>(size_t{kPairPageTokens} * groups),
                       std::vector<Half>(size_t{kPairPageTokens} * groups)};
  for (uint32_t t = 0; t < kPairPageTokens; ++t) {
    const std::byte* block = record.data() + t / 32 * layout.block_bytes();
    for (uint32_t k = 0; k < d; ++k) {
      page.key_codes[size_t{t} * d + layout.order[k]] =
          static_cast<uint8_t>(GetBits(block, PlaceOfPairKey(layout, t % 32, k), layout.steps[k / 16].width));
    }
    ForEachValuePlane(layout.format, [&](uint32_t bits, uint32_t low, size_t offset) {
      for (uint32_t c = 0; c < d; ++c) {
        const uint32_t field =
            GetBits(block + 2 * layout.key_tile_bytes() + offset, PlaceOfPairValue(d, bits, t % 32, c), bits);
        page.value_codes[size_t{t} * d + c] |= static_cast<uint8_t>(field << low);
      }
    });
  }
  const RecordTail tail = TailOf(layout, const_cast<std::byte*>(record.data()));
  for (uint32_t k = 0; k < d; ++k) {
    page.key_scales[layout.order[k]] = tail.key_scales[PlaceOfKeyScale(k)];
    page.key_zeros[layout.order[k]] = tail.key_zeros[PlaceOfKeyScale(k)];
  }
  for (uint32_t i = 0; i < kPairPageTokens * groups; ++i) {
    page.value_scales[i] = tail.value_scales[i % groups * kPairPageTokens + i / groups];
    page.value_zeros[i] = tail.value_zeros[i % groups * kPairPageTokens + i / groups];
  }
  return page;
}

}  // namespace kvant::kernels::cuda
