#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/base/checked.h"
#include "kvant/codec/token_codec.h"

namespace kvant::codec {

/// Tokens of one tile: one vector lane a token when keys are read.
inline constexpr uint32_t kTileTokens = 16;

/// Where things lie in one KV head's record of a page, the order in which the attention kernels read them.
/// Format: docs/format/token-tiers.md, "In memory".
///
///   keys    fp16   [tile][channel][16 tokens]
///           int8   [tile][group of 4 channels][16 tokens][4 channels]
///           int4   [tile][group of 8 channels][16 tokens][4 bytes], a row's own nibble pairs (RowCodeBytes)
///   values  fp16   [token][value_channels]
///           int8   [group of 4 tokens][value_channels][4 tokens]
///           int4   [group of 8 tokens][value_channels][4 bytes]: byte j is token j (low) and token 4+j (high nibble)
///   then    key scales, key zeros, value scales, value zeros, [capacity] fp16 each, where the codec has them
///
/// value_channels is head_dim rounded up to 16; channels and tokens beyond the real ones hold code 0, scale 0, zero 0.
/// Every part begins at a multiple of 64 bytes.
struct TokenPageLayout {
  TokenCodec codec{};
  uint32_t head_dim = 0;
  uint32_t capacity = 0;  ///< token slots, a multiple of kTileTokens
  uint32_t value_channels = 0;
  size_t key_tile_bytes = 0;
  size_t values = 0;  ///< byte offset; keys stand at 0
  size_t key_scales = 0;
  size_t key_zeros = 0;
  size_t value_scales = 0;
  size_t value_zeros = 0;
  size_t record_bytes = 0;  ///< of one KV head; a page holds num_kv_heads records in a row

  static TokenPageLayout Make(TokenCodec codec, uint32_t head_dim, uint32_t capacity);
};

/// Byte offset in the record of the four-byte unit that holds key channels of `group` for one token (int8, int4).
inline size_t KeyUnitOffset(const TokenPageLayout& layout, uint32_t token, uint32_t group) {
  return (token / kTileTokens) * layout.key_tile_bytes + (size_t{group} * kTileTokens + token % kTileTokens) * 4;
}

/// Put encoded rows into a record at token slot `first`; the scalar reference of the page kernels.
///
/// Requires first + num_tokens <= layout.capacity; record 64-byte aligned; slots from `first` on hold no tokens
/// Ensures  only slots [first, first + num_tokens) change
void StoreRowsRef(const TokenPageLayout& layout, std::byte* record, uint32_t first, uint32_t num_tokens,
                  ConstTokenRows keys, ConstTokenRows values);

/// The inverse: StoreRows then LoadRows gives the same bytes (a bijection on real tokens). Where `values` is empty,
/// keys are loaded alone.
void LoadRowsRef(const TokenPageLayout& layout, const std::byte* record, uint32_t first, uint32_t num_tokens,
                 TokenRows keys, TokenRows values);

}  // namespace kvant::codec
