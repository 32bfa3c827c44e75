#include <immintrin.h>

#include "kernels/cpu/rows_kernels.h"

// Whole tiles of 16 tokens into and out of a page record. All of it is transposition: of halves (fp16 keys), of the
// four-byte units of coded keys, and of bytes (values), 16 bytes at a time.
namespace kvant::kernels {
namespace {

using codec::kTileTokens;
using codec::TokenCodec;
using codec::TokenPageLayout;

__m128i Load16(const void* src) { return _mm_loadu_si128(static_cast<const __m128i*>(src)); }
void Store16(void* dst, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(dst), a); }

/// rows[i], lane j  <->  rows[j], lane i, of 16-bit lanes.
void Transpose8x8(__m128i* rows) {
  __m128i a[8];
  __m128i b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
    a[2 * i + 1] = _mm_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[2 * i] = _mm_unpacklo_epi64(b[i], b[i + 4]);
    rows[2 * i + 1] = _mm_unpackhi_epi64(b[i], b[i + 4]);
  }
}

/// The same of 32-bit lanes.
void Transpose4x4(__m128i* rows) {
  const __m128i a = _mm_unpacklo_epi32(rows[0], rows[1]);
  const __m128i b = _mm_unpackhi_epi32(rows[0], rows[1]);
  const __m128i c = _mm_unpacklo_epi32(rows[2], rows[3]);
  const __m128i d = _mm_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm_unpacklo_epi64(a, c);
  rows[1] = _mm_unpackhi_epi64(a, c);
  rows[2] = _mm_unpacklo_epi64(b, d);
  rows[3] = _mm_unpackhi_epi64(b, d);
}

// ---- keys -----------------------------------------------------------------------------------------------------------

/// A square block whose lanes are units of kUnitBytes, from one 16-byte row per stride to the other way round.
template <size_t kUnitBytes>
void TransposeBlock(const void* src, size_t src_stride, void* dst, size_t dst_stride) {
  constexpr size_t kCount = 16 / kUnitBytes;
  __m128i block[kCount];
  for (size_t i = 0; i < kCount; ++i) {
    block[i] = Load16(static_cast<const std::byte*>(src) + i * src_stride);
  }
  if constexpr (kUnitBytes == 2) {
    Transpose8x8(block);
  } else {
    Transpose4x4(block);
  }
  for (size_t i = 0; i < kCount; ++i) {
    Store16(static_cast<std::byte*>(dst) + i * dst_stride, block[i]);
  }
}

/// Calls body(block of rows, block of the tile) over one tile of keys. kUnitBytes is what of a row stays together: a
/// half, or four bytes of codes. The last block overlaps the one before where the row is no multiple.
template <size_t kUnitBytes, typename RowByte, typename TileByte, class Body>
void ForKeyBlocks(RowByte* rows, size_t row_bytes, TileByte* tile, const Body& body) {
  constexpr size_t kCount = 16 / kUnitBytes;
  const size_t num_units = row_bytes / kUnitBytes;
  for (size_t unit = 0; unit < num_units; unit += kCount) {
    const size_t at = unit + kCount <= num_units ? unit : num_units - kCount;
    for (size_t token = 0; token < kTileTokens; token += kCount) {
      body(rows + token * row_bytes + at * kUnitBytes, tile + (at * kTileTokens + token) * kUnitBytes);
    }
  }
}

template <size_t kUnitBytes>
void StoreKeyTile(const uint8_t* rows, size_t row_bytes, std::byte* tile) {
  ForKeyBlocks<kUnitBytes>(rows, row_bytes, tile, [&](const uint8_t* row_block, std::byte* tile_block) {
    TransposeBlock<kUnitBytes>(row_block, row_bytes, tile_block, kTileTokens * kUnitBytes);
  });
}

template <size_t kUnitBytes>
void LoadKeyTile(const std::byte* tile, uint8_t* rows, size_t row_bytes) {
  ForKeyBlocks<kUnitBytes>(rows, row_bytes, tile, [&](uint8_t* row_block, const std::byte* tile_block) {
    TransposeBlock<kUnitBytes>(tile_block, kTileTokens * kUnitBytes, row_block, row_bytes);
  });
}

// ---- values ---------------------------------------------------------------------------------------------------------

/// Bytes (token, channel) of 4 tokens and 16 channels to (channel, token), 64 bytes.
void Interleave(const __m128i* tokens, std::byte* dst) {
  const __m128i low01 = _mm_unpacklo_epi8(tokens[0], tokens[1]);
  const __m128i high01 = _mm_unpackhi_epi8(tokens[0], tokens[1]);
  const __m128i low23 = _mm_unpacklo_epi8(tokens[2], tokens[3]);
  const __m128i high23 = _mm_unpackhi_epi8(tokens[2], tokens[3]);
  Store16(dst, _mm_unpacklo_epi16(low01, low23));
  Store16(dst + 16, _mm_unpackhi_epi16(low01, low23));
  Store16(dst + 32, _mm_unpacklo_epi16(high01, high23));
  Store16(dst + 48, _mm_unpackhi_epi16(high01, high23));
}

/// The inverse of Interleave on vectors already loaded.
void Deinterleave(__m128i* quads) {
  const __m128i by_token = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int i = 0; i < 4; ++i) {
    quads[i] = _mm_shuffle_epi8(quads[i], by_token);
  }
  Transpose4x4(quads);
}

/// Codes of 16 channels from 8 bytes of a 4-bit row.
__m128i NibblesToBytes(const uint8_t* row) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row));
  const __m128i mask = _mm_set1_epi8(0xF);
  return _mm_unpacklo_epi32(_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
}

void BytesToNibbles(__m128i codes, uint8_t* row) {
  const __m128i joined = _mm_or_si128(codes, _mm_srli_epi64(codes, 28));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(row), _mm_shuffle_epi32(joined, _MM_SHUFFLE(2, 0, 2, 0)));
}

void StoreBytes(const uint8_t* rows, size_t row_bytes, size_t channels, std::byte* dst) {
  for (size_t c = 0; c < channels; c += 16) {
    const __m128i tokens[4] = {Load16(rows + c), Load16(rows + row_bytes + c), Load16(rows + 2 * row_bytes + c),
                               Load16(rows + 3 * row_bytes + c)};
    Interleave(tokens, dst + 4 * c);
  }
}

void LoadBytes(const std::byte* src, size_t channels, uint8_t* rows, size_t row_bytes) {
  for (size_t c = 0; c < channels; c += 16) {
    __m128i quads[4] = {Load16(src + 4 * c), Load16(src + 4 * c + 16), Load16(src + 4 * c + 32),
                        Load16(src + 4 * c + 48)};
    Deinterleave(quads);
    for (size_t t = 0; t < 4; ++t) {
      Store16(rows + t * row_bytes + c, quads[t]);
    }
  }
}

void StoreNibbles(const uint8_t* rows, size_t row_bytes, size_t channels, std::byte* dst) {
  for (size_t c = 0; c < channels; c += 16) {
    __m128i pairs[4];
    for (size_t t = 0; t < 4; ++t) {
      const __m128i low = NibblesToBytes(rows + t * row_bytes + c / 2);
      const __m128i high = NibblesToBytes(rows + (t + 4) * row_bytes + c / 2);
      pairs[t] = _mm_or_si128(low, _mm_slli_epi16(high, 4));
    }
    Interleave(pairs, dst + 4 * c);
  }
}

void LoadNibbles(const std::byte* src, size_t channels, uint8_t* rows, size_t row_bytes) {
  const __m128i mask = _mm_set1_epi8(0xF);
  for (size_t c = 0; c < channels; c += 16) {
    __m128i pairs[4] = {Load16(src + 4 * c), Load16(src + 4 * c + 16), Load16(src + 4 * c + 32),
                        Load16(src + 4 * c + 48)};
    Deinterleave(pairs);
    for (size_t t = 0; t < 4; ++t) {
      BytesToNibbles(_mm_and_si128(pairs[t], mask), rows + t * row_bytes + c / 2);
      BytesToNibbles(_mm_and_si128(_mm_srli_epi16(pairs[t], 4), mask), rows + (t + 4) * row_bytes + c / 2);
    }
  }
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

size_t ValueTileOffset(const TokenPageLayout& layout, size_t bits, uint32_t token) {
  return layout.values + size_t{token} * layout.value_channels * bits / 8;
}

template <size_t kBits>
void StoreTiles(const TokenPageLayout& layout, std::byte* record, uint32_t first, uint32_t num_tokens,
                const uint8_t* keys, const uint8_t* values) {
  constexpr uint32_t kStep = kBits == 16 ? 1 : 32 / kBits;
  const size_t row_bytes = layout.head_dim * kBits / 8;
  for (uint32_t t = 0; t < num_tokens; t += kTileTokens) {
    std::byte* tile = record + (first + t) / kTileTokens * layout.key_tile_bytes;
    StoreKeyTile<kBits == 16 ? 2 : 4>(keys + t * row_bytes, row_bytes, tile);
  }
  for (uint32_t t = 0; t < num_tokens; t += kStep) {
    std::byte* dst = record + ValueTileOffset(layout, kBits, first + t);
    const uint8_t* rows = values + t * row_bytes;
    if constexpr (kBits == 16) {
      __builtin_memcpy(dst, rows, row_bytes);
    } else if constexpr (kBits == 8) {
      StoreBytes(rows, row_bytes, layout.head_dim, dst);
    } else {
      StoreNibbles(rows, row_bytes, layout.head_dim, dst);
    }
  }
}

template <size_t kBits>
void LoadTiles(const TokenPageLayout& layout, const std::byte* record, uint32_t first, uint32_t num_tokens,
               uint8_t* keys, uint8_t* values) {
  constexpr uint32_t kStep = kBits == 16 ? 1 : 32 / kBits;
  const size_t row_bytes = layout.head_dim * kBits / 8;
  for (uint32_t t = 0; t < num_tokens; t += kTileTokens) {
    const std::byte* tile = record + (first + t) / kTileTokens * layout.key_tile_bytes;
    LoadKeyTile<kBits == 16 ? 2 : 4>(tile, keys + t * row_bytes, row_bytes);
  }
  if (values == nullptr) {
    return;
  }
  for (uint32_t t = 0; t < num_tokens; t += kStep) {
    const std::byte* src = record + ValueTileOffset(layout, kBits, first + t);
    uint8_t* rows = values + t * row_bytes;
    if constexpr (kBits == 16) {
      __builtin_memcpy(rows, src, row_bytes);
    } else if constexpr (kBits == 8) {
      LoadBytes(src, layout.head_dim, rows, row_bytes);
    } else {
      LoadNibbles(src, layout.head_dim, rows, row_bytes);
    }
  }
}

}  // namespace

const TileLoops kTileLoopsAvx2 = {{StoreTiles<16>, StoreTiles<8>, StoreTiles<4>, StoreTiles<4>},
                                  {LoadTiles<16>, LoadTiles<8>, LoadTiles<4>, LoadTiles<4>}};

}  // namespace kvant::kernels
