#include "kvant/kernels/attend.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "kernels/cpu/attend_kernels.h"
#include "kvant/base/check.h"

namespace kvant::kernels {
namespace {

using codec::TokenCodec;
using codec::TokenPageLayout;

constexpr size_t kAlignment = 64;

const AttendKernels& AttendKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return kAttendAvx2;
    case Isa::kAvx512Vnni: return kAttendAvx512Vnni;
  }
  return kAttendScalar;
}

const Half* HalfAt(const std::byte* record, size_t offset) { return reinterpret_cast<const Half*>(record + offset); }

// One call's memory, cut out of the scratch.
class Workspace {
 public:
  Workspace(const AttendQueries& queries, AttendScratch& scratch)
      : value_channels_(static_cast<uint32_t>(RoundUp(queries.head_dim, 16))),
        num_blocks_(static_cast<uint32_t>(CeilDiv(queries.num_rows(), kRowBlock))) {
    const size_t q_elems = RoundUp(queries.head_dim, 8) * kRowBlock;
    const size_t out_elems = size_t{value_channels_} * kRowBlock;
    const size_t blocks_bytes = RoundUp(num_blocks_ * sizeof(RowBlock), kAlignment);
    const size_t floats_bytes = num_blocks_ * (q_elems + out_elems) * sizeof(float);
    std::byte* memory = scratch.Reserve(sizeof(StretchMemory) + blocks_bytes + floats_bytes);
    stretch_ = new (memory) StretchMemory;
    blocks_ = reinterpret_cast<RowBlock*>(memory + sizeof(StretchMemory));
    auto* floats = reinterpret_cast<float*>(memory + sizeof(StretchMemory) + blocks_bytes);
    for (uint32_t b = 0; b < num_blocks_; ++b) {
      RowBlock& block = *new (blocks_ + b) RowBlock{};
      block.num_rows = std::min(kRowBlock, queries.num_rows() - b * kRowBlock);
      block.q = floats + b * (q_elems + out_elems);
      block.x = reinterpret_cast<int32_t*>(block.q);
      block.out = block.q + q_elems;
      std::fill_n(block.out, out_elems, 0.0F);
      std::fill_n(block.max, kRowBlock, -INFINITY);
    }
  }

  std::span<RowBlock> blocks() { return {blocks_, num_blocks_}; }
  StretchMemory& stretch() { return *stretch_; }

  void Export(uint32_t head_dim, AttendPartial partial) const {
    uint32_t row = 0;
    for (const RowBlock& block : std::span(blocks_, num_blocks_)) {
      for (uint32_t r = 0; r < block.num_rows; ++r, ++row) {
        std::copy_n(block.out + size_t{r} * value_channels_, head_dim, partial.out + size_t{row} * head_dim);
        partial.max[row] = block.max[r];
        partial.sum[row] = block.sum[r];
      }
    }
  }

 private:
  uint32_t value_channels_;
  uint32_t num_blocks_;
  StretchMemory* stretch_ = nullptr;
  RowBlock* blocks_ = nullptr;
};

void PrepareRows(const AttendKernels& kernels, const AttendQueries& queries, const AttendSegment& segment,
                 std::span<RowBlock> blocks) {
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    RowSource source{{}, blocks[b].num_rows, queries.head_dim, queries.scale, segment.key_mean, segment.key_scale};
    for (uint32_t r = 0; r < source.num_rows; ++r) {
      const uint32_t row = b * kRowBlock + r;
      source.rows[r] = queries.data + row / queries.q_heads_per_kv_head * queries.query_stride +
                       row % queries.q_heads_per_kv_head * queries.head_stride;
    }
    kernels.prepare_rows(segment.layout->codec, source, blocks[b]);
  }
}

// The tokens [first, first + num_tokens) of a segment, which lie in one page.
Stretch MakeStretch(const AttendSegment& segment, uint32_t first) {
  const TokenPageLayout& layout = *segment.layout;
  const std::byte* record = segment.pages[first / layout.capacity] + segment.record_offset;
  const uint32_t slot = first % layout.capacity;
  Stretch stretch{};
  stretch.head_dim = layout.head_dim;
  stretch.value_channels = layout.value_channels;
  stretch.key_tile_bytes = layout.key_tile_bytes;
  stretch.keys = record + slot / codec::kTileTokens * layout.key_tile_bytes;
  stretch.values = record + layout.values +
                   size_t{slot} * layout.value_channels * static_cast<size_t>(codec::CodeBits(layout.codec)) / 8;
  stretch.key_scales = HalfAt(record, layout.key_scales) + slot;
  stretch.key_zeros = HalfAt(record, layout.key_zeros) + slot;
  stretch.value_scales = HalfAt(record, layout.value_scales) + slot;
  stretch.value_zeros = HalfAt(record, layout.value_zeros) + slot;
  return stretch;
}

uint32_t StretchTokens(const TokenPageLayout& layout, uint32_t first, uint32_t end) {
  return std::min({kStretchTokens, layout.capacity - first % layout.capacity, end - first});
}

// Scales and zeros are read a few lines at a time, too few for the hardware to see a stream.
void PrefetchParams(const TokenPageLayout& layout, const Stretch& stretch) {
  constexpr size_t kLineHalves = 32;
  for (const auto& [present, params] : {std::pair(codec::HasScale(layout.codec), stretch.key_scales),
                                        std::pair(codec::HasScale(layout.codec), stretch.value_scales),
                                        std::pair(codec::HasZero(layout.codec), stretch.key_zeros),
                                        std::pair(codec::HasZero(layout.codec), stretch.value_zeros)}) {
    for (size_t i = 0; present && i < std::min(kStretchTokens, layout.capacity); i += kLineHalves) {
      __builtin_prefetch(params + i);
    }
  }
}

// Before the first stretch, while the queries are prepared.
void PrefetchStart(const TokenPageLayout& layout, const Stretch& stretch) {
  constexpr size_t kLine = 64;
  constexpr size_t kBytes = 4096;
  for (size_t at = 0; at < kBytes; at += kLine) {
    __builtin_prefetch(stretch.keys + at, 0, 2);
  }
  PrefetchParams(layout, stretch);
}

// How many tokens of a stretch the rows of a block see; returns the largest.
uint32_t SetVisible(const AttendQueries& queries, uint32_t first_row, int64_t first_position, uint32_t num_tokens,
                    RowBlock& block) {
  uint32_t reach = 0;
  for (uint32_t r = 0; r < block.num_rows; ++r) {
    const int64_t position = queries.positions[(first_row + r) / queries.q_heads_per_kv_head];
    const int64_t visible = std::clamp<int64_t>(position - first_position + 1, 0, num_tokens);
    block.visible[r] = static_cast<uint32_t>(visible);
    reach = std::max(reach, block.visible[r]);
  }
  return reach;
}

// Stretch by stretch, and each for all rows while it is in the nearest cache.
void AttendToSlice(const AttendKernels& kernels, const AttendQueries& queries, const AttendSlice& slice,
                   Workspace& workspace) {
  const AttendSegment& segment = slice.segment;
  const TokenPageLayout& layout = *segment.layout;
  const auto attend = kernels.attend[static_cast<size_t>(layout.codec)];
  const uint32_t end = slice.first_token + slice.num_tokens;
  for (uint32_t first = slice.first_token; first < end;) {
    const uint32_t num_tokens = StretchTokens(layout, first, end);
    Stretch stretch = MakeStretch(segment, first);
    stretch.keys_ahead = stretch.values - stretch.keys;
    if (first + num_tokens < end) {
      const Stretch next = MakeStretch(segment, first + num_tokens);
      stretch.values_ahead = next.keys - stretch.values;
      PrefetchParams(layout, next);
    }
    for (uint32_t b = 0; b < workspace.blocks().size(); ++b) {
      RowBlock& block = workspace.blocks()[b];
      const int64_t first_position = int64_t{segment.first_position} + first;
      const uint32_t reach = SetVisible(queries, b * kRowBlock, first_position, num_tokens, block);
      if (reach > 0) {
        attend(stretch, reach, block, workspace.stretch());
        stretch.keys_ahead = 0;
        stretch.values_ahead = 0;
      }
    }
    first += num_tokens;
  }
}

}  // namespace

std::byte* AttendScratch::Reserve(size_t bytes) {
  if (memory_.size() < bytes + kAlignment) {
    memory_.resize(bytes + kAlignment);
  }
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  return memory_.data() + (RoundUp(address, kAlignment) - address);
}

void AttendChunk(Isa isa, const AttendQueries& queries, std::span<const AttendSlice> chunk, AttendPartial partial,
                 AttendScratch& scratch) {
  KVANT_CHECK(queries.num_queries > 0 && queries.positions.size() == queries.num_queries, "one position a query");
  const AttendKernels& kernels = AttendKernelsOf(isa);
  Workspace workspace(queries, scratch);
  for (const AttendSlice& slice : chunk) {
    const AttendSegment& segment = slice.segment;
    if (slice.num_tokens > 0) {
      PrefetchStart(*segment.layout, MakeStretch(segment, slice.first_token));
    }
    KVANT_CHECK(segment.layout->head_dim == queries.head_dim, "the cache and the queries are of one model");
    KVANT_CHECK(slice.first_token % codec::kTileTokens == 0, "a slice begins at a tile");
    KVANT_CHECK(slice.first_token + slice.num_tokens <= segment.num_tokens, "a slice lies in its segment");
    PrepareRows(kernels, queries, segment, workspace.blocks());
    AttendToSlice(kernels, queries, slice, workspace);
  }
  workspace.Export(queries.head_dim, partial);
}

}  // namespace kvant::kernels
