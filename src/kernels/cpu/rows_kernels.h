#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/codec/token_codec.h"
#include "kvant/codec/token_page.h"

// The row kernels of one instruction set behind kernels/rows.h, with plain pointers instead of spans: these headers are
// compiled with each set's flags.
namespace kvant::kernels {

struct RowsOut {
  uint8_t* codes;
  Half* scales;
  Half* zeros;
};
struct RowsIn {
  const uint8_t* codes;
  const Half* scales;
  const Half* zeros;
};

/// Every function as its namesake in kernels/rows.h; there is no encode and decode for kFp16, which is a copy.
struct RowLoops {
  void (*encode[codec::kNumTokenCodecs])(uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                                         RowsOut out);
  void (*decode[codec::kNumTokenCodecs])(uint32_t head_dim, RowsIn rows, size_t num_tokens, Half* dst,
                                         size_t dst_stride);
  bool (*to_half)(const float* src, Half* dst, size_t count);
};

/// Codes of whole tiles into and out of a record (no scales or zeros), for head dimensions that are multiples of 16.
/// `first` and `num_tokens` are multiples of kTileTokens. Where `values` is null, keys are loaded alone.
struct TileLoops {
  void (*store[codec::kNumTokenCodecs])(const codec::TokenPageLayout& layout, std::byte* record, uint32_t first,
                                        uint32_t num_tokens, const uint8_t* keys, const uint8_t* values);
  void (*load[codec::kNumTokenCodecs])(const codec::TokenPageLayout& layout, const std::byte* record, uint32_t first,
                                       uint32_t num_tokens, uint8_t* keys, uint8_t* values);
};

extern const RowLoops kRowLoopsAvx2;
extern const RowLoops kRowLoopsAvx512;
extern const TileLoops kTileLoopsAvx2;

}  // namespace kvant::kernels
