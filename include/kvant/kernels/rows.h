#pragma once

#include "kvant/codec/token_codec.h"
#include "kvant/codec/token_page.h"
#include "kvant/kernels/cpu.h"

namespace kvant::kernels {

/// The fast twins of codec::EncodeRowsRef, DecodeRowsRef, StoreRowsRef and LoadRowsRef: same arguments, same bytes.
/// All kTileTokens-aligned or ragged counts are allowed. Pure; one thread each.
struct RowKernels {
  void (*encode)(codec::TokenCodec codec, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                 codec::TokenRows out);
  void (*decode)(codec::TokenCodec codec, uint32_t head_dim, codec::ConstTokenRows rows, size_t num_tokens, Half* dst,
                 size_t dst_stride);
  void (*store)(const codec::TokenPageLayout& layout, std::byte* record, uint32_t first, uint32_t num_tokens,
                codec::ConstTokenRows keys, codec::ConstTokenRows values);
  void (*load)(const codec::TokenPageLayout& layout, const std::byte* record, uint32_t first, uint32_t num_tokens,
               codec::TokenRows keys, codec::TokenRows values);
  /// fp32 to fp16, round to nearest even, as kvant::ToHalf. Returns false when a value is not finite *as fp16*
  /// (NaN, infinity, or beyond 65504 after rounding); dst is then unspecified.
  bool (*to_half)(const float* src, Half* dst, size_t count);
};

const RowKernels& RowKernelsOf(Isa isa);

}  // namespace kvant::kernels
