#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvant/codec/pair_page.h"
#include "kvant/codec/token_codec.h"

/// How KV pages lie in GPU memory: in the order in which tensor-core fragments are filled, so that a warp loads its
/// operands with 16-byte reads and no exchange. Keys are the 16-row operand (rows = tokens), values the transposed one
/// (rows = channels); query heads are the 8 columns. A bijection of the codec's rows and pages.
/// Format: docs/format/gpu-pages.md
namespace kvant::kernels::cuda {

inline constexpr uint32_t kTileTokens = 16;
inline constexpr uint32_t kPairPageTokens = 128;

/// Which lane, register and half of an m16n8k16 operand holds (row, column) of a 16 × 16 tile.
struct FragmentPlace {
  uint32_t lane;   ///< 0…31
  uint32_t upper;  ///< 1: row 8…15
  uint32_t block;  ///< 1: column 8…15
  uint32_t half;   ///< 1: the upper 16 bits
};
constexpr FragmentPlace PlaceInFragment(uint32_t row, uint32_t column) {
  return {row % 8 * 4 + column % 8 / 2, row / 8, column / 8, column % 2};
}

/// Where a code begins: 32-bit word and bit.
struct CodePlace {
  uint32_t word;
  uint32_t bit;
};

// ------------------------------------------------------------------------------------------------ token tiers
// One tile = 16 tokens of one KV head, contiguous:
//   keys, values   each [step][lane]… of 16-byte units, as PlaceOfTokenCode says; step = 16 channels
//   key scales, value scales, then key zeros, value zeros (kInt4Affine): [16] fp16 each

constexpr size_t TokenTileCodeBytes(codec::TokenCodec codec, uint32_t head_dim) {
  return size_t{head_dim} * kTileTokens * static_cast<size_t>(codec::CodeBits(codec)) / 8;
}
constexpr size_t TokenTileScales(codec::TokenCodec codec, uint32_t head_dim) {
  return 2 * TokenTileCodeBytes(codec, head_dim);
}
constexpr size_t TokenTileBytes(codec::TokenCodec codec, uint32_t head_dim) {
  const size_t rows = size_t{2} * 2 * kTileTokens;
  return TokenTileScales(codec, head_dim) + (codec::HasScale(codec) ? rows : 0) + (codec::HasZero(codec) ? rows : 0);
}

/// The code of `channel` of `token` (0…15) in the keys (`is_key`) or values of a tile.
constexpr CodePlace PlaceOfTokenCode(codec::TokenCodec codec, bool is_key, uint32_t token, uint32_t channel) {
  const FragmentPlace p = is_key ? PlaceInFragment(token, channel % 16) : PlaceInFragment(channel % 16, token);
  const uint32_t step = channel / 16;
  switch (codec::CodeBits(codec)) {
    case 16: return {(step * 32 + p.lane) * 4 + p.upper + 2 * p.block, 16 * p.half};
    case 8: return {(step / 2 * 32 + p.lane) * 4 + step % 2 * 2 + p.upper, 16 * p.half + 8 * p.block};
    default:
      return {(step / 4 * 32 + p.lane) * 4 + step % 4 / 2 * 2 + p.upper, 16 * p.half + 8 * p.block + 4 * (step % 2)};
  }
}

/// Put encoded rows into consecutive tiles, from token slot `first` on; other slots keep what they hold.
///
/// Shapes   tiles [ceil((first + num_tokens) / 16) tiles]; rows as in codec/token_codec.h
/// Requires head_dim a multiple of 64
void StoreTokenTilesRef(codec::TokenCodec codec, uint32_t head_dim, std::span<std::byte> tiles, uint32_t first,
                        uint32_t num_tokens, codec::ConstTokenRows keys, codec::ConstTokenRows values);
void LoadTokenTilesRef(codec::TokenCodec codec, uint32_t head_dim, std::span<const std::byte> tiles, uint32_t first,
                       uint32_t num_tokens, codec::TokenRows keys, codec::TokenRows values);

// ------------------------------------------------------------------------------------------------ pair pages
// One record = one page of 128 tokens of one KV head, contiguous:
//   4 blocks of two tiles   keys of tile 0, keys of tile 1: [word column][lane][row half] words
//                           values: per plane [group][lane][4] words
//   key scales, key zeros   [head_dim] fp16, kernel order interleaved so that a lane reads 16 bytes
//   value scales, zeros     [value group][128] fp16 each

/// One step of 16 channels: its codes are fields of `width` bits at `position` (channels 0…7 of the step) and
/// `position + width` (8…15) of both halves of the words of one column.
struct PairStep {
  uint32_t column = 0;
  uint32_t position = 0;  ///< both fields lie in bits 0…9 or both in bits 6…15: one shift of 0 or 6 reaches them
  uint32_t width = 0;
};

inline constexpr uint32_t kMaxSteps = 16;

/// What the kernels need to know of a width map; one a layer and KV head, in GPU memory.
/// A step takes the width of its widest channel, so narrow channels may lie in wider fields.
struct alignas(16) PairDeviceMap {
  /// A step for the inner loop: byte offset of its column in a tile's keys, shift, the masks of both fields, and the
  /// weight 2^(5 - bit) of either field as two fp16.
  struct Step {
    uint32_t offset = 0;
    uint32_t shift = 0;
    uint32_t mask[2] = {0, 0};
    uint32_t weight[2] = {0, 0};
    uint32_t position = 0;  ///< what packing needs: PairStep::position and width
    uint32_t width = 0;
  };
  /// Channels of the four elements a lane holds of a step: byte j of order[quad][step] is the channel of position
  /// 16·step + 2·quad + j % 2 + 8·(j / 2).
  uint32_t order[4][kMaxSteps] = {};
  uint8_t width[256] = {};  ///< channel -> bits of its codes, which may be fewer than its field has
  Step steps[kMaxSteps];
  uint32_t key_columns = 0;
  uint32_t block_bytes = 0;
  uint32_t tail = 0;  ///< byte offset of the key scales in the record
  uint32_t record_bytes = 0;
};

/// Lay the steps out; the fields fill the 16-bit halves first-fit, widest first.
struct PairDeviceLayout {
  codec::PairFormat format;
  std::vector<uint32_t> order;
  std::vector<uint8_t> widths;  ///< [channel]
  std::vector<PairStep> steps;
  uint32_t key_columns = 0;

  /// Errors  kInvalidArgument: pages of other than 128 tokens; kModelUnsupported: head_dim not 64, 128, 256
  static Result<PairDeviceLayout> Make(const codec::PairFormat& format, const codec::WidthMap& map);

  /// PN-Mix's 3/1 bits at 50 %: two steps of three bits and two of one in every column.
  bool IsHalfThreeOne() const;
  size_t key_tile_bytes() const { return size_t{key_columns} * 256; }
  size_t value_block_bytes() const;
  size_t block_bytes() const { return 2 * key_tile_bytes() + value_block_bytes(); }
  size_t tail() const { return kPairPageTokens / 32 * block_bytes(); }
  size_t record_bytes() const {
    return tail() + 4 * size_t{format.head_dim} + 4 * kPairPageTokens * format.ValueGroups();
  }
  PairDeviceMap DeviceMap() const;
};

/// Bits of the value planes, lowest first: {2}, {1, 2} for three bits (plane 0 is bit 0), {4}.
constexpr uint32_t ValuePlaneBits(uint32_t value_bits, uint32_t plane) {
  return value_bits == 3 ? (plane == 0 ? 1U : 2U) : (plane == 0 ? value_bits : 0U);
}
/// Groups of 512 bytes that one plane of `bits` takes in a block of two tiles.
constexpr uint32_t ValueGroupsOfPlane(uint32_t head_dim, uint32_t bits) { return (head_dim / 8 * bits + 15) / 16; }

/// Word (in the values of its block) and bit of one value field.
constexpr CodePlace PlaceOfPairValue(uint32_t head_dim, uint32_t bits, uint32_t token_in_block, uint32_t channel) {
  const FragmentPlace p = PlaceInFragment(channel % 16, token_in_block % 16);
  const uint32_t field = token_in_block / 16 * (head_dim / 16) + channel / 16;
  const uint32_t fields_a_word = 16 / bits;
  return {(field / fields_a_word * 32 + p.lane) * 4 + p.upper + 2 * p.block,
          16 * p.half + field % fields_a_word * bits};
}

/// Index of the scale of kernel position `position` among the key scales.
constexpr uint32_t PlaceOfKeyScale(uint32_t position) {
  const uint32_t step = position / 16;
  const FragmentPlace p = PlaceInFragment(0, position % 16);
  return (step / 2 * 4 + p.lane % 4) * 8 + step % 2 * 4 + p.block * 2 + p.half;
}

void StorePairRecordRef(const PairDeviceLayout& layout, const codec::PairPage& page, std::span<std::byte> record);
codec::PairPage LoadPairRecordRef(const PairDeviceLayout& layout, std::span<const std::byte> record);

}  // namespace kvant::kernels::cuda
