#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/half.h"
#include "kvant/base/status.h"

namespace kvant::codec {

/// Which two channels RoPE turns together.
enum class PairLayout : uint8_t {
  kHalfSplit = 0,    ///< (i, i + d/2): Qwen, Gemma
  kInterleaved = 1,  ///< (2i, 2i + 1): Llama and Mistral GGUF files
};

/// Bits a key channel gets, one number a RoPE pair: PN-Mix has two of them, `pairs:B` one to four, uniform one.
/// A property of the page: two sequences that share pages share the map.
struct WidthMap {
  PairLayout pairs = PairLayout::kHalfSplit;
  std::vector<uint8_t> widths;  ///< [head_dim / 2], each 1…kMaxKeyBits

  static constexpr uint32_t kMaxKeyBits = 4;

  uint32_t head_dim() const { return static_cast<uint32_t>(widths.size()) * 2; }
  uint32_t PairOf(uint32_t channel) const;
  uint32_t WidthOf(uint32_t channel) const { return widths[PairOf(channel)]; }
  /// Bits of one token's key: the payload of the keys of a page is page_tokens times that.
  uint32_t BitsPerKey() const;
  friend bool operator==(const WidthMap&, const WidthMap&) = default;
};

/// PN-Mix's map: `high` bits where `salient`, `low` elsewhere.
WidthMap TwoWidthMap(PairLayout pairs, uint32_t low, uint32_t high, std::span<const bool> salient);

/// Channels in the order the kernels store them: wider first, equal widths by channel number. q·k does not depend on
/// the order, so q is permuted once and the wide fields are a dense prefix.
std::vector<uint32_t> ChannelOrder(const WidthMap& map);

/// How two or more bits are reconstructed.
enum class PairRule : uint8_t {
  kMinMax = 0,   ///< the outermost codes are min and max of the group (the papers)
  kMidRise = 1,  ///< the middles of equal cells (lab.md sections 4 and 5)
};

/// Which two points the keys of one bit take. PN-Mix corrects the end points, which min-max would take, towards the
/// middle; the others are there to be compared with. Packing is scalar code with them, on every instruction set.
enum class OneBitRule : uint8_t {
  kQuarterPoints = 0,  ///< the middles of both halves of the range (quant/mid_rise.h)
  kEndPoints = 1,      ///< min and max
  kMeans = 2,          ///< the means of what lies in each half (quant/two_means.h)
};

/// How the keys of a channel are quantized.
struct KeyRule {
  PairRule rule = PairRule::kMinMax;
  OneBitRule one_bit = OneBitRule::kQuarterPoints;
  friend bool operator==(const KeyRule&, const KeyRule&) = default;
};

inline constexpr uint32_t kMinValueGroup = 16;

/// Everything that fixes the size and meaning of a page but the map.
struct PairFormat {
  uint32_t head_dim = 0;
  uint32_t page_tokens = 128;  ///< tokens of a page, and of a key group
  uint32_t value_bits = 2;     ///< 2, 3, 4 or 8
  uint32_t value_group = 0;    ///< channels of a value group: a multiple of 16 and a divisor of head_dim
  PairRule key_rule = PairRule::kMinMax;
  PairRule value_rule = PairRule::kMinMax;
  OneBitRule one_bit = OneBitRule::kQuarterPoints;
  friend bool operator==(const PairFormat&, const PairFormat&) = default;

  uint32_t ValueGroups() const { return head_dim / value_group; }
};

/// Errors  kModelUnsupported: a head dimension that is no multiple of 16 in 32…256; kInvalidArgument: a field out of
///         range, or a map of another head dimension
Status CheckPairFormat(const PairFormat& format);
Status CheckPairFormat(const PairFormat& format, const WidthMap& map);

/// Byte offsets of one KV head's page as it is sent and stored cold. Format: docs/format/pair-pages.md
///
///   key planes    plane 0 of every channel, plane 1 of the channels wider than 1, …; channels in rising order;
///                 a plane is page_tokens bits, token t at bit t % 8 of byte t / 8; plane j holds bit j of the codes
///   key scales    [head_dim] fp16, then key zeros [head_dim] fp16
///   value codes   [page_tokens] rows of head_dim · value_bits bits, lowest bit first
///   value scales  [page_tokens, groups] fp16, then value zeros the same
struct PairPageLayout {
  size_t key_scales = 0;
  size_t key_zeros = 0;
  size_t value_codes = 0;
  size_t value_scales = 0;
  size_t value_zeros = 0;
  size_t total_bytes = 0;

  static PairPageLayout Make(const PairFormat& format, const WidthMap& map);
};

/// One KV head's page with one code a byte: what packing, layouts and references meet at.
///
/// Shapes  key_codes [page_tokens, head_dim], key_scales, key_zeros [head_dim],
///         value_codes [page_tokens, head_dim], value_scales, value_zeros [page_tokens, groups]
struct PairPage {
  std::vector<uint8_t> key_codes;
  std::vector<Half> key_scales;
  std::vector<Half> key_zeros;
  std::vector<uint8_t> value_codes;
  std::vector<Half> value_scales;
  std::vector<Half> value_zeros;
  friend bool operator==(const PairPage&, const PairPage&) = default;
};

/// Quantize one page: keys per channel over the page's tokens, values per token and group of channels; the scalar
/// reference of all packing kernels, code for code.
///
/// Shapes   keys, values [page_tokens, head_dim] fp16, rows `stride` elements apart
/// Requires CheckPairFormat; finite input
PairPage EncodePairPageRef(const PairFormat& format, const WidthMap& map, const Half* keys, const Half* values,
                           size_t stride);

/// The keys of one channel of a page as they are read, x̂ in fp32, in the place of what was stored.
/// Requires bits in 1…WidthMap::kMaxKeyBits; finite input, not empty
void RoundTripKeyGroup(KeyRule rule, uint32_t bits, std::span<float> keys);

/// Σ (x - x̂)² over them: what the choice of widths is made by.
double KeyGroupError(KeyRule rule, uint32_t bits, std::span<const float> keys);

/// x̂ = scale · code + zero in fp32, not rounded after that.
/// Shapes  keys, values [page_tokens, head_dim]
void DecodePairPageRef(const PairFormat& format, const PairPage& page, std::span<float> keys, std::span<float> values);

/// Turn a row of values by an orthonormal Hadamard matrix, its own inverse: over the whole head where its dimension is
/// a power of two, else over each run of the largest power of two that divides it. In fp32.
void RotateRow(std::span<float> row);

/// To bytes and back; a bijection for codes below 2^width.
/// Requires bytes.size() == PairPageLayout::total_bytes
void SerializePairPage(const PairFormat& format, const WidthMap& map, const PairPage& page, std::span<std::byte> bytes);
PairPage ParsePairPage(const PairFormat& format, const WidthMap& map, std::span<const std::byte> bytes);

}  // namespace kvant::codec
