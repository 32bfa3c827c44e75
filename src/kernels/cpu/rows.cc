#include "kvant/kernels/rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/rows_kernels.h"
#include "kvant/base/check.h"

namespace kvant::kernels {
namespace {

using codec::ConstTokenRows;
using codec::TokenCodec;
using codec::TokenPageLayout;
using codec::TokenRows;

template <const RowLoops& kLoops>
void EncodeRows(TokenCodec codec, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_tokens,
                TokenRows out) {
  if (codec == TokenCodec::kFp16) {
    return codec::EncodeRowsRef(codec, head_dim, src, src_stride, num_tokens, out);
  }
  KVANT_CHECK(out.codes.size() == num_tokens * codec::RowCodeBytes(codec, head_dim),
              "the caller sized the codes by RowCodeBytes");
  kLoops.encode[static_cast<size_t>(codec)](head_dim, src, src_stride, num_tokens,
                                            {out.codes.data(), out.scales.data(), out.zeros.data()});
}

template <const RowLoops& kLoops>
void DecodeRows(TokenCodec codec, uint32_t head_dim, ConstTokenRows rows, size_t num_tokens, Half* dst,
                size_t dst_stride) {
  if (codec == TokenCodec::kFp16) {
    const size_t row_bytes = codec::RowCodeBytes(codec, head_dim);
    for (size_t t = 0; t < num_tokens; ++t) {
      std::memcpy(dst + t * dst_stride, rows.codes.data() + t * row_bytes, row_bytes);
    }
    return;
  }
  kLoops.decode[static_cast<size_t>(codec)](head_dim, {rows.codes.data(), rows.scales.data(), rows.zeros.data()},
                                            num_tokens, dst, dst_stride);
}

template <typename Rows>
Rows RowsFrom(const TokenPageLayout& layout, const Rows& rows, size_t first, size_t count) {
  if (rows.codes.empty()) {
    return {};  // nothing is wanted of these rows
  }
  const size_t row_bytes = codec::RowCodeBytes(layout.codec, layout.head_dim);
  Rows part;
  part.codes = rows.codes.subspan(first * row_bytes, count * row_bytes);
  if (codec::HasScale(layout.codec)) {
    part.scales = rows.scales.subspan(first, count);
  }
  if (codec::HasZero(layout.codec)) {
    part.zeros = rows.zeros.subspan(first, count);
  }
  return part;
}

// How a run of slots falls apart: ragged ends go through the reference, whole tiles through the loops.
struct TileRun {
  uint32_t num_before = 0;
  uint32_t num_in_tiles = 0;
  uint32_t num_after = 0;
};

TileRun SplitIntoTiles(const TokenPageLayout& layout, uint32_t first, uint32_t num_tokens) {
  if (layout.head_dim % 16 != 0) {
    return {num_tokens, 0, 0};
  }
  const uint32_t to_tile = (codec::kTileTokens - first % codec::kTileTokens) % codec::kTileTokens;
  const uint32_t num_before = std::min(to_tile, num_tokens);
  const uint32_t rest = num_tokens - num_before;
  const uint32_t num_after = rest % codec::kTileTokens;
  return {num_before, rest - num_after, num_after};
}

Half* HalfAt(std::byte* record, size_t offset) { return reinterpret_cast<Half*>(record + offset); }
const Half* HalfAt(const std::byte* record, size_t offset) { return reinterpret_cast<const Half*>(record + offset); }

// Calls body(first slot, number of slots, keys, values) for the pieces of a run: `ragged` for its ends, `tiles` for the
// whole tiles between them.
template <typename Rows, typename Ragged, typename Tiles>
void ForEachPiece(const TokenPageLayout& layout, uint32_t first, uint32_t num_tokens, const Rows& keys,
                  const Rows& values, const Ragged& ragged, const Tiles& tiles) {
  KVANT_CHECK(first + num_tokens <= layout.capacity, "the cache asks only for slots that exist");
  const TileRun run = SplitIntoTiles(layout, first, num_tokens);
  const auto piece = [&](uint32_t at, uint32_t count, const auto& body) {
    if (count > 0) {
      body(first + at, count, RowsFrom(layout, keys, at, count), RowsFrom(layout, values, at, count));
    }
  };
  piece(0, run.num_before, ragged);
  piece(run.num_before, run.num_in_tiles, tiles);
  piece(run.num_before + run.num_in_tiles, run.num_after, ragged);
}

// Calls copy(the rows' parameters, those of their slots in the record) for each kind that the codec has.
template <typename Record, typename Rows, typename Copy>
void CopyParams(const TokenPageLayout& layout, Record* record, uint32_t slot, const Rows& keys, const Rows& values,
                const Copy& copy) {
  copy(keys.scales, HalfAt(record, layout.key_scales) + slot);
  copy(keys.zeros, HalfAt(record, layout.key_zeros) + slot);
  copy(values.scales, HalfAt(record, layout.value_scales) + slot);
  copy(values.zeros, HalfAt(record, layout.value_zeros) + slot);
}

template <const TileLoops& kLoops>
void StoreRows(const TokenPageLayout& layout, std::byte* record, uint32_t first, uint32_t num_tokens,
               ConstTokenRows keys, ConstTokenRows values) {
  const auto ragged = [&](uint32_t slot, uint32_t count, const ConstTokenRows& k, const ConstTokenRows& v) {
    codec::StoreRowsRef(layout, record, slot, count, k, v);
  };
  const auto tiles = [&](uint32_t slot, uint32_t count, const ConstTokenRows& k, const ConstTokenRows& v) {
    kLoops.store[static_cast<size_t>(layout.codec)](layout, record, slot, count, k.codes.data(), v.codes.data());
    CopyParams(layout, record, slot, k, v,
               [](std::span<const Half> rows, Half* slots) { std::ranges::copy(rows, slots); });
  };
  ForEachPiece(layout, first, num_tokens, keys, values, ragged, tiles);
}

template <const TileLoops& kLoops>
void LoadRows(const TokenPageLayout& layout, const std::byte* record, uint32_t first, uint32_t num_tokens,
              TokenRows keys, TokenRows values) {
  const auto ragged = [&](uint32_t slot, uint32_t count, const TokenRows& k, const TokenRows& v) {
    codec::LoadRowsRef(layout, record, slot, count, k, v);
  };
  const auto tiles = [&](uint32_t slot, uint32_t count, const TokenRows& k, const TokenRows& v) {
    kLoops.load[static_cast<size_t>(layout.codec)](layout, record, slot, count, k.codes.data(), v.codes.data());
    CopyParams(layout, record, slot, k, v,
               [](std::span<Half> rows, const Half* slots) { std::copy_n(slots, rows.size(), rows.begin()); });
  };
  ForEachPiece(layout, first, num_tokens, keys, values, ragged, tiles);
}

bool ToHalfScalar(const float* src, Half* dst, size_t count) {
  ToHalf(std::span(src, count), std::span(dst, count));
  return AllFinite(std::span<const Half>(dst, count));
}

constexpr RowKernels kScalar = {codec::EncodeRowsRef, codec::DecodeRowsRef, codec::StoreRowsRef, codec::LoadRowsRef,
                                ToHalfScalar};
constexpr RowKernels kAvx2 = {
    EncodeRows<kRowLoopsAvx2>, DecodeRows<kRowLoopsAvx2>, StoreRows<kTileLoopsAvx2>, LoadRows<kTileLoopsAvx2>,
    [](const float* src, Half* dst, size_t count) { return kRowLoopsAvx2.to_half(src, dst, count); }};
constexpr RowKernels kAvx512 = {
    EncodeRows<kRowLoopsAvx512>, DecodeRows<kRowLoopsAvx512>, StoreRows<kTileLoopsAvx2>, LoadRows<kTileLoopsAvx2>,
    [](const float* src, Half* dst, size_t count) { return kRowLoopsAvx512.to_half(src, dst, count); }};

}  // namespace

const RowKernels& RowKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return kAvx2;
    case Isa::kAvx512Vnni: return kAvx512;
  }
  return kScalar;
}

}  // namespace kvant::kernels
