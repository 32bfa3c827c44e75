#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvant/base/half.h"
#include "kvant/base/status.h"
#include "kvant/quant/group.h"

namespace kvant::codec {

/// How one token's row of one KV head (head_dim elements of K or of V) is stored. One group is one row.
/// The numbers are stable for life: they stand in frames and pages. Format: docs/format/token-tiers.md
enum class TokenCodec : uint8_t {
  kFp16 = 0,        ///< the fp16 values themselves
  kInt8 = 1,        ///< symmetric, 8 bits, fp16 scale                 (SpectrumKV section 3; methods.md 3.12)
  kInt4 = 2,        ///< symmetric, 4 bits, fp16 scale                 (the same)
  kInt4Affine = 3,  ///< asymmetric, 4 bits, fp16 scale and fp16 zero  (lab.md section 10.3)
};
inline constexpr uint8_t kNumTokenCodecs = 4;

std::string_view TokenCodecName(TokenCodec codec);

/// Head dimensions every codec, page and kernel works for: multiples of 4 from 32 to 256.
inline constexpr uint32_t kMinHeadDim = 32;
inline constexpr uint32_t kMaxHeadDim = 256;
Status CheckHeadDim(uint32_t head_dim);

constexpr int CodeBits(TokenCodec codec) {
  return codec == TokenCodec::kFp16 ? 16 : codec == TokenCodec::kInt8 ? 8 : 4;
}
constexpr bool HasScale(TokenCodec codec) { return codec != TokenCodec::kFp16; }
constexpr bool HasZero(TokenCodec codec) { return codec == TokenCodec::kInt4Affine; }
constexpr quant::Rule RuleOf(TokenCodec codec) {
  return HasZero(codec) ? quant::Rule::kAffine : quant::Rule::kSymmetric;
}

/// Bytes of one row's codes: fp16 2·d, int8 d, int4 4·ceil(d/8).
///
/// The 4-bit row is cut into groups of 8 channels; byte j of group g holds channel 8g+j in its low and channel
/// 8g+4+j in its high nibble, so that four bytes are four channels at once in either nibble. Channels beyond d are 0.
size_t RowCodeBytes(TokenCodec codec, uint32_t head_dim);

/// Bytes of one row with its scale and zero.
size_t RowBytes(TokenCodec codec, uint32_t head_dim);

/// What a row has, whatever its codes mean.
struct RowFormat {
  size_t code_bytes = 0;
  bool has_scale = false;
  bool has_zero = false;

  size_t bytes() const { return code_bytes + (has_scale ? sizeof(Half) : 0) + (has_zero ? sizeof(Half) : 0); }
};
RowFormat FormatOf(TokenCodec codec, uint32_t head_dim);

/// Rows of consecutive tokens of one KV head, structure of arrays: what stands in frames.
///
/// Shapes  codes  [num_tokens, RowCodeBytes]
///         scales [num_tokens] fp16, empty for kFp16
///         zeros  [num_tokens] fp16, empty unless HasZero
struct TokenRows {
  std::span<uint8_t> codes;
  std::span<Half> scales;
  std::span<Half> zeros;
};
struct ConstTokenRows {
  std::span<const uint8_t> codes;
  std::span<const Half> scales;
  std::span<const Half> zeros;
};

/// Encode rows; the scalar reference of kernels::RowKernels::encode, byte for byte.
///
/// Shapes   src [num_tokens, head_dim] fp16, rows `src_stride` elements apart
/// Requires CheckHeadDim; out spans of exactly the sizes above; src finite
/// Ensures  out fully written, padding nibbles 0
void EncodeRowsRef(TokenCodec codec, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                   TokenRows out);

/// Decode rows to fp16, rounded once from the fp32 value, ±65504 where that is beyond the fp16 range; the scalar
/// reference of kernels::RowKernels::decode.
void DecodeRowsRef(TokenCodec codec, uint32_t head_dim, ConstTokenRows rows, size_t num_tokens, Half* dst,
                   size_t dst_stride);

/// Decode one row to fp32, no rounding after the scale.
void DecodeRow(TokenCodec codec, uint32_t head_dim, const uint8_t* codes, Half scale, Half zero, std::span<float> dst);

}  // namespace kvant::codec
