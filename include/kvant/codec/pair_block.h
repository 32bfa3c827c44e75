#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/codec/pair_page.h"
#include "kvant/codec/pair_precision.h"

// Pair pages in a layer block: what a block says of them before the pages themselves.
// Format: docs/format/wire.md, "Layer block of pair pages"
//
//   u8 page version, 1 · u8 value bits · u16 page tokens · u16 value group · u8 key rule · u8 value rule
//   u8 values turned · u8 pair layout · u16 key bits a token · u8 one-bit rule · 3 × u8 0
//   then per KV head  widths, 4 bits a pair, the first in the lowest bits of the first byte
namespace kvant::codec {

inline constexpr uint8_t kPairPageVersion = 1;
inline constexpr size_t kPairFormatBytes = 16;

/// What all KV heads of a layer share, and what fixes the size of their pages: each has a map of its own, of the same
/// number of bits.
struct PairBlockFormat {
  PairFormat format;
  PairLayout pairs = PairLayout::kHalfSplit;
  bool rotated_values = false;
  uint32_t bits_per_key = 0;  ///< WidthMap::BitsPerKey of every head
  friend bool operator==(const PairBlockFormat&, const PairBlockFormat&) = default;

  size_t page_bytes() const;
  size_t map_bytes() const { return format.head_dim / 4; }  ///< of one KV head
  /// Whether pages of a precision are so, whatever their maps.
  bool IsOf(const PairPrecision& precision, uint32_t head_dim) const {
    return format == precision.FormatOf(head_dim) && rotated_values == precision.rotate_values;
  }
};

inline constexpr uint32_t kInt4PageTokens = 128;
/// The pages of a spectrum's int4 tier (Spectrum::int4_pages): kInt4PageTokens tokens, keys of 4 bits by channel and
/// values of 4 bits over the whole head, both min-max. Nothing of it is said in frames.
PairBlockFormat Int4PageFormat(uint32_t head_dim);
/// All widths are 4. Requires a head dimension that pages can have
WidthMap Int4PageMap(uint32_t head_dim);

/// Requires one map a KV head, all of format's head dimension and of equal bits, or none at all
PairBlockFormat PairBlockFormatOf(const PairPrecision& precision, uint32_t head_dim, PairLayout pairs,
                                  std::span<const WidthMap> maps);

/// The format, then a map a KV head. Requires bytes.size() >= kPairFormatBytes + maps.size() · format.map_bytes()
void PutPairMaps(const PairBlockFormat& format, std::span<const WidthMap> maps, std::span<std::byte> bytes);
/// Requires bytes.size() == kPairFormatBytes
/// Errors   kVersionUnsupported; kInvalidArgument: a field out of range; kModelUnsupported: a head dimension
Result<PairBlockFormat> TakePairFormat(uint32_t head_dim, std::span<const std::byte> bytes);
/// The maps behind the format. Requires bytes.size() >= kPairFormatBytes + num_kv_heads · format.map_bytes()
/// Errors   kCorruption: a width that there is not, or other bits than the format says
Result<std::vector<WidthMap>> TakeWidthMaps(const PairBlockFormat& format, uint32_t num_kv_heads,
                                            std::span<const std::byte> bytes);

}  // namespace kvant::codec
