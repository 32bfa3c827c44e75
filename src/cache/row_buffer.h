#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvant/codec/progressive.h"
#include "kvant/codec/token_codec.h"
#include "kvant/kernels/rows.h"

namespace kvant::cache {

/// Memory for the encoded rows of one batch.
struct RowBuffer {
  explicit RowBuffer(size_t rows, uint32_t head_dim)
      : codes(rows * codec::RowCodeBytes(codec::TokenCodec::kFp16, head_dim)), scales(rows), zeros(rows) {}

  codec::TokenRows Rows(const codec::RowFormat& format, uint32_t count) {
    return {std::span(codes).first(count * format.code_bytes), std::span(scales).first(format.has_scale ? count : 0),
            std::span(zeros).first(format.has_zero ? count : 0)};
  }

  std::vector<uint8_t> codes;
  std::vector<Half> scales;
  std::vector<Half> zeros;
};

inline codec::ConstTokenRows Const(const codec::TokenRows& rows) { return {rows.codes, rows.scales, rows.zeros}; }

/// int8 codes and rests of one batch.
struct Planes {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> rest;
};

/// Rows of a tier in the progressive code, as they stand in a block.
void EncodePlanes(const kernels::RowKernels& rows, codec::Tier tier, uint32_t head_dim, const Half* src, uint32_t count,
                  Planes& planes, const codec::TokenRows& out);

}  // namespace kvant::cache
