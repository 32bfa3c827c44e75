#pragma once

#include <vector>

#include "kvant/codec/token_codec.h"

namespace kvant::test {

inline constexpr codec::TokenCodec kTokenCodecs[] = {codec::TokenCodec::kFp16, codec::TokenCodec::kInt8,
                                                     codec::TokenCodec::kInt4, codec::TokenCodec::kInt4Affine};

/// Encoded rows in memory of their own, filled with what no test writes.
struct TokenRowBuffer {
  TokenRowBuffer(codec::TokenCodec codec, uint32_t head_dim, size_t count)
      : codes(codec::RowCodeBytes(codec, head_dim) * count, 0xEE),
        scales(codec::HasScale(codec) ? count : 0, Half{0x5A5A}),
        zeros(codec::HasZero(codec) ? count : 0, Half{0x5A5A}) {}

  codec::TokenRows mutable_view() { return {codes, scales, zeros}; }
  codec::ConstTokenRows view() const { return {codes, scales, zeros}; }
  friend bool operator==(const TokenRowBuffer&, const TokenRowBuffer&) = default;

  std::vector<uint8_t> codes;
  std::vector<Half> scales;
  std::vector<Half> zeros;
};

}  // namespace kvant::test
