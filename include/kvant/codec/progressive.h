#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvant/base/half.h"
#include "kvant/base/status.h"
#include "kvant/codec/precision.h"
#include "kvant/codec/tiers.h"

// The progressive code of a row (design.md decision 5): one embedded code an element in planes of 4 | 4 | 8 bits, so
// that a token is raised from int4 to int8 to 16 bits by its missing planes alone.
// Format: docs/format/token-tiers.md, "Progressive code"
//
//   code    the row's symmetric int8 code, 0 … 255 around 128, with its scale
//   top     code >> 4                                    x̂ = scale · (16 · top + 7.5 - 128)
//   middle  code & 15                                    x̂ = scale · (code - 128), the int8 codec itself
//   rest    round(256 · (x / scale - (code - 128))) + 128  x̂ = scale · (code - 128 + (rest - 128) / 256)
//
// In memory the tiers lie in pages of plain codecs: int4 as kInt4Affine, int8 as kInt8, 16 bits decoded to kFp16.
namespace kvant::codec {

/// A row of a tier as it stands in a block: int4 the top plane, int8 the code, fp16 the code and then the rest; a scale
/// each. Requires a stored tier
RowFormat ProgressiveFormat(Tier tier, uint32_t head_dim);

/// rest of rows whose int8 codes and scales are known. Shapes  src [num_tokens, head_dim], rest the same
void EncodeRest(uint32_t head_dim, const Half* src, size_t num_tokens, ConstTokenRows int8, uint8_t* rest);
/// One row with all planes, fp32.
void DecodeFine(uint32_t head_dim, const uint8_t* codes, const uint8_t* rest, Half scale, float* dst);

/// A 4-bit plane of rows of codes, as rows of int4 (RowCodeBytes); channels beyond head_dim 0.
void TopPlane(uint32_t head_dim, const uint8_t* codes, size_t num_tokens, uint8_t* nibbles);
void MiddlePlane(uint32_t head_dim, const uint8_t* codes, size_t num_tokens, uint8_t* nibbles);
/// The codes again.
void JoinPlanes(uint32_t head_dim, const uint8_t* top, const uint8_t* middle, size_t num_tokens, uint8_t* codes);

/// The scale and zero under which kInt4Affine reads the top plane, and back: 16 · scale and fp16(-120.5 · scale).
/// Requires scale finite and at most kMaxProgressiveScale; then the way back is exact
quant::GroupParams CoarseParams(Half scale);
Half FineScale(Half coarse_scale);
inline constexpr float kMaxProgressiveScale = 516.0F;  ///< of a row of halves: 65504 / 127, rounded to fp16

/// How many tokens a KV head raises, and from where to where. The same for all heads of a layer.
struct TierMoves {
  uint32_t int4_to_int8 = 0;
  uint32_t int4_to_fp16 = 0;
  uint32_t int8_to_fp16 = 0;

  uint32_t middle_rows() const { return int4_to_int8 + int4_to_fp16; }
  uint32_t rest_rows() const { return int4_to_fp16 + int8_to_fp16; }
  friend bool operator==(const TierMoves&, const TierMoves&) = default;
};

/// Errors  kInvalidArgument: a token is lowered, or a dropped one raised
Result<TierMoves> CountMoves(std::span<const Tier> from, std::span<const Tier> to);

/// The planes that raise tokens of one layer, as contiguous bytes: the payload of an upgrade frame
/// (docs/format/wire.md, "Upgrade"). Rows in position order, no padding.
///
///   per KV head   tier ids                          of the tokens as they will be
///                 key middles, value middles        middle_rows() rows of int4
///                 key rests, value rests            rest_rows() rows of head_dim bytes
struct UpgradeLayout {
  CacheShape shape;
  uint32_t num_tokens = 0;  ///< that have a tier: the encoded ones of the layer's block
  TierMoves moves;

  size_t middle_bytes() const;
  size_t rest_bytes() const { return size_t{moves.rest_rows()} * shape.head_dim; }
  size_t head_bytes() const { return TierIdBytes(num_tokens) + 2 * (middle_bytes() + rest_bytes()); }
  size_t total_bytes() const { return head_bytes() * shape.num_kv_heads; }
  friend bool operator==(const UpgradeLayout&, const UpgradeLayout&) = default;
};

template <typename Byte>
struct UpgradeHead {
  std::span<Byte> tier_ids;
  std::span<Byte> key_middles;
  std::span<Byte> value_middles;
  std::span<Byte> key_rests;
  std::span<Byte> value_rests;
};

/// Requires block.size() == layout.total_bytes()
UpgradeHead<std::byte> HeadOf(const UpgradeLayout& layout, std::span<std::byte> block, uint32_t kv_head);
UpgradeHead<const std::byte> HeadOf(const UpgradeLayout& layout, std::span<const std::byte> block, uint32_t kv_head);

}  // namespace kvant::codec
