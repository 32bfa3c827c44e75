#include "kvant/codec/token_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "codec/nibbles.h"
#include "kvant/base/check.h"
#include "kvant/base/checked.h"

namespace kvant::codec {
namespace {

void EncodeRow(TokenCodec codec, std::span<const float> x, uint8_t* row, quant::GroupParams* params) {
  std::array<uint8_t, kMaxHeadDim> codes{};
  const std::span<uint8_t> used(codes.data(), x.size());
  *params = quant::FitGroup(RuleOf(codec), CodeBits(codec), x);
  quant::EncodeGroup(RuleOf(codec), CodeBits(codec), *params, x, used);
  if (CodeBits(codec) == 4) {
    PackNibbles(used, row);
  } else {
    std::memcpy(row, codes.data(), x.size());
  }
}

}  // namespace

std::string_view TokenCodecName(TokenCodec codec) {
  switch (codec) {
    case TokenCodec::kFp16: return "fp16";
    case TokenCodec::kInt8: return "int8";
    case TokenCodec::kInt4: return "int4";
    case TokenCodec::kInt4Affine: return "int4-affine";
  }
  return "unknown";
}

Status CheckHeadDim(uint32_t head_dim) {
  if (head_dim < kMinHeadDim || head_dim > kMaxHeadDim || head_dim % 4 != 0) {
    return {StatusCode::kModelUnsupported, "head dimension " + std::to_string(head_dim) +
                                               " is not supported: a multiple of 4 from 32 to 256 is needed"};
  }
  return OkStatus();
}

size_t RowCodeBytes(TokenCodec codec, uint32_t head_dim) {
  switch (CodeBits(codec)) {
    case 16: return size_t{2} * head_dim;
    case 8: return head_dim;
    default: return 4 * CeilDiv(head_dim, 8);
  }
}

size_t RowBytes(TokenCodec codec, uint32_t head_dim) { return FormatOf(codec, head_dim).bytes(); }

RowFormat FormatOf(TokenCodec codec, uint32_t head_dim) {
  return {RowCodeBytes(codec, head_dim), HasScale(codec), HasZero(codec)};
}

void EncodeRowsRef(TokenCodec codec, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                   TokenRows out) {
  const size_t row_bytes = RowCodeBytes(codec, head_dim);
  KVANT_CHECK(out.codes.size() == num_tokens * row_bytes, "the caller sized the codes by RowCodeBytes");
  std::array<float, kMaxHeadDim> x{};
  for (size_t t = 0; t < num_tokens; ++t) {
    uint8_t* row = out.codes.data() + t * row_bytes;
    if (codec == TokenCodec::kFp16) {
      std::memcpy(row, src + t * src_stride, row_bytes);
      continue;
    }
    ToFloat(std::span(src + t * src_stride, head_dim), std::span(x.data(), head_dim));
    quant::GroupParams params;
    EncodeRow(codec, std::span<const float>(x.data(), head_dim), row, &params);
    out.scales[t] = params.scale;
    if (HasZero(codec)) {
      out.zeros[t] = params.zero;
    }
  }
}

void DecodeRow(TokenCodec codec, uint32_t head_dim, const uint8_t* codes, Half scale, Half zero, std::span<float> dst) {
  std::array<uint8_t, kMaxHeadDim> unpacked{};
  const std::span<uint8_t> used(unpacked.data(), head_dim);
  switch (CodeBits(codec)) {
    case 16:
      for (uint32_t c = 0; c < head_dim; ++c) {
        Half value;
        std::memcpy(&value, codes + 2 * c, sizeof value);
        dst[c] = ToFloat(value);
      }
      return;
    case 8: std::memcpy(unpacked.data(), codes, head_dim); break;
    default: UnpackNibbles(codes, used); break;
  }
  quant::DecodeGroup(RuleOf(codec), CodeBits(codec), {scale, zero}, used, dst.first(head_dim));
}

void DecodeRowsRef(TokenCodec codec, uint32_t head_dim, ConstTokenRows rows, size_t num_tokens, Half* dst,
                   size_t dst_stride) {
  const size_t row_bytes = RowCodeBytes(codec, head_dim);
  std::array<float, kMaxHeadDim> x{};
  for (size_t t = 0; t < num_tokens; ++t) {
    DecodeRow(codec, head_dim, rows.codes.data() + t * row_bytes, HasScale(codec) ? rows.scales[t] : Half{},
              HasZero(codec) ? rows.zeros[t] : Half{}, x);
    // The rounding of the scale can carry the largest code past the largest half.
    for (uint32_t c = 0; c < head_dim; ++c) {
      dst[t * dst_stride + c] = ToHalf(std::clamp(x[c], -kHalfMax, kHalfMax));
    }
  }
}

}  // namespace kvant::codec
