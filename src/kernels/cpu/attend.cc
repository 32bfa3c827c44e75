#include "kvant/kernels/attend.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numbers>
#include <utility>

#include "kernels/cpu/attend_driver.h"
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

const PairKernels& PairKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return kPairAvx2;
    case Isa::kAvx512Vnni: return HasLookUps() ? kPairAvx512 : kPairAvx2;
  }
  return kPairScalar;
}

const Half* HalfAt(const std::byte* record, size_t offset) { return reinterpret_cast<const Half*>(record + offset); }

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
      Prefetch(params + i);
    }
  }
}

// Keys and values of a stretch.
Fetch FetchOf(const TokenPageLayout& layout, const Stretch& stretch, uint32_t num_tokens) {
  const size_t tokens = RoundUp(num_tokens, codec::kTileTokens);
  const size_t key_bytes = tokens / codec::kTileTokens * layout.key_tile_bytes;
  const size_t value_bytes = tokens * layout.value_channels * static_cast<size_t>(codec::CodeBits(layout.codec)) / 8;
  return {stretch.keys, stretch.keys + key_bytes, stretch.values, stretch.values + value_bytes};
}

// Before the first stretch, while the queries are prepared.
void PrefetchStart(const AttendSlice& slice) {
  constexpr size_t kLine = 64;
  const Fetch fetch = BeginFetch(slice, slice.first_token);
  for (const auto& [at, end] : {std::pair(fetch.at, fetch.end), std::pair(fetch.then, fetch.then_end)}) {
    for (const std::byte* line = at; line < end; line += kLine) {
      Prefetch(line);
    }
  }
}

// How many of a segment's tokens [first, first + num_tokens) lie at positions up to `position`.
uint32_t TokensUpTo(const AttendSegment& segment, uint32_t first, uint32_t num_tokens, int32_t position) {
  if (segment.positions != nullptr) {
    // A decoded token sees them all: one look, at a place that all chunks of a segment share, instead of a search
    // through memory that nothing else reads.
    if (segment.positions[segment.num_tokens - 1] <= position) {
      return num_tokens;
    }
    const int32_t* begin = segment.positions + first;
    return static_cast<uint32_t>(std::upper_bound(begin, begin + num_tokens, position) - begin);
  }
  const int64_t first_position = int64_t{segment.first_position} + first;
  return static_cast<uint32_t>(std::clamp<int64_t>(position - first_position + 1, 0, num_tokens));
}

}  // namespace

Fetch BeginFetch(const AttendSlice& slice, uint32_t first) {
  if (slice.segment.pair != nullptr) {
    return PairFetch(slice.segment, first);
  }
  const TokenPageLayout& layout = *slice.segment.layout;
  const Stretch stretch = MakeStretch(slice.segment, first);
  PrefetchParams(layout, stretch);
  return FetchOf(layout, stretch, StretchTokens(layout, first, slice.first_token + slice.num_tokens));
}

uint32_t SetVisible(const AttendQueries& queries, uint32_t first_row, const AttendSegment& segment, uint32_t first,
                    uint32_t num_tokens, RowBlock& block) {
  uint32_t reach = 0;
  for (uint32_t r = 0; r < block.num_rows; ++r) {
    if (r > 0 && (first_row + r) % queries.q_heads_per_kv_head != 0) {  // a row of the same query
      block.visible[r] = block.visible[r - 1];
      block.hidden[r] = block.hidden[r - 1];
      continue;
    }
    const int32_t position = queries.positions[(first_row + r) / queries.q_heads_per_kv_head];
    block.visible[r] = TokensUpTo(segment, first, num_tokens, position);
    block.hidden[r] = 0;
    if (queries.window > 0) {
      const int64_t left = int64_t{position} - queries.window;
      block.hidden[r] = left < 0 ? 0 : TokensUpTo(segment, first, num_tokens, static_cast<int32_t>(left));
    }
    reach = std::max(reach, block.visible[r] > block.hidden[r] ? block.visible[r] : 0);
  }
  return reach;
}

RowSource SourceOf(const AttendQueries& queries, uint32_t block, uint32_t num_rows) {
  RowSource source{{}, num_rows, queries.head_dim, queries.scale * std::numbers::log2e_v<float>, nullptr, nullptr};
  for (uint32_t r = 0; r < num_rows; ++r) {
    const uint32_t row = block * kRowBlock + r;
    source.rows[r] = queries.data + row / queries.q_heads_per_kv_head * queries.query_stride +
                     row % queries.q_heads_per_kv_head * queries.head_stride;
  }
  return source;
}

std::byte* AttendScratch::Reserve(size_t bytes) {
  if (memory_.size() < bytes + kAlignment) {
    memory_.resize(bytes + kAlignment);
  }
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  return memory_.data() + (RoundUp(address, kAlignment) - address);
}

RowAttention::RowAttention(Isa isa, const AttendQueries& queries, AttendScratch& scratch)
    : kernels_(AttendKernelsOf(isa)),
      pair_kernels_(PairKernelsOf(isa)),
      queries_(queries),
      value_channels_(static_cast<uint32_t>(RoundUp(queries.head_dim, 16))) {
  KVANT_CHECK(queries.num_queries > 0 && queries.positions.size() == queries.num_queries, "one position a query");
  const auto num_blocks = static_cast<uint32_t>(CeilDiv(queries.num_rows(), kRowBlock));
  const size_t q_elems = RoundUp(queries.head_dim, 8) * kRowBlock;
  const size_t x_elems = q_elems / 2;
  const size_t out_elems = size_t{value_channels_} * kRowBlock;
  const size_t pair_out_elems = RoundUp(size_t{3} * queries.head_dim, 64) * kRowBlock;
  const size_t pair_zero_elems = size_t{value_channels_} / 16 * kMaxLanes * kRowBlock;
  constexpr size_t kPairXElems = kPairXWords * kRowBlock;
  const size_t block_elems = 2 * q_elems + x_elems + out_elems + kPairXElems + pair_out_elems + pair_zero_elems;
  const size_t blocks_offset = sizeof(StretchMemory) + sizeof(PairMemory);
  const size_t elems_offset = blocks_offset + RoundUp(num_blocks * sizeof(RowBlock), kAlignment);
  std::byte* memory = scratch.Reserve(elems_offset + num_blocks * block_elems * sizeof(float));
  stretch_ = new (memory) StretchMemory;
  pair_memory_ = new (memory + sizeof(StretchMemory)) PairMemory;
  auto* blocks = reinterpret_cast<RowBlock*>(memory + blocks_offset);
  auto* elems = reinterpret_cast<float*>(memory + elems_offset);
  for (uint32_t b = 0; b < num_blocks; ++b, elems += block_elems) {
    RowBlock& block = *new (blocks + b) RowBlock;
    block.num_rows = std::min(kRowBlock, queries.num_rows() - b * kRowBlock);
    block.cap_bits = queries.logit_cap * std::numbers::log2e_v<float>;
    block.q = elems;
    block.out = block.q + q_elems;
    block.out_channels = value_channels_;
    block.pair.active = false;
    block.pair.q = block.out + out_elems;
    block.pair.out = block.pair.q + q_elems;
    block.pair.zero = block.pair.out + pair_out_elems;
    block.x = reinterpret_cast<int32_t*>(block.pair.zero + pair_zero_elems);
    block.pair.x = block.x + x_elems;
  }
  blocks_ = {blocks, num_blocks};
}

void RowAttention::Attend(std::span<const AttendSlice> chunk, const AttendSlice* next, AttendPartial partial) {
  for (RowBlock& block : blocks_) {
    std::fill_n(block.out, size_t{block.num_rows} * value_channels_, 0.0F);
    std::fill_n(block.max, block.num_rows, -INFINITY);
    std::fill_n(block.sum[0], block.num_rows * kMaxLanes, 0.0F);
    std::fill_n(block.zero[0], block.num_rows * kMaxLanes, 0.0F);
  }
  if (!fetched_ && !chunk.empty()) {
    PrefetchStart(chunk[0]);
  }
  for (size_t i = 0; i < chunk.size(); ++i) {
    const AttendSlice* following = i + 1 < chunk.size() ? &chunk[i + 1] : next;
    Check(chunk[i]);
    chunk[i].segment.pair != nullptr ? AttendToPairSlice(chunk[i], following) : AttendToSlice(chunk[i], following);
  }
  FinishPairs();
  fetched_ = next != nullptr;
  Export(partial);
}

void RowAttention::Prepare(const AttendSegment& segment) {
  Form& form = codec::HasScale(segment.layout->codec) ? coded_ : exact_;
  if (form.ready && form.key_mean == segment.key_mean) {
    return;
  }
  form = {true, segment.key_mean};
  for (uint32_t b = 0; b < blocks_.size(); ++b) {
    RowSource source = SourceOf(queries_, b, blocks_[b].num_rows);
    source.key_mean = segment.key_mean;
    source.key_scale = segment.key_scale;
    kernels_.prepare_rows(segment.layout->codec, source, blocks_[b]);
  }
}

// Stretch by stretch, and each for all rows while it is in the nearest cache. The next one is fetched meanwhile.
void RowAttention::AttendToSlice(const AttendSlice& slice, const AttendSlice* next) {
  const AttendSegment& segment = slice.segment;
  const TokenPageLayout& layout = *segment.layout;
  Prepare(segment);
  const auto attend = kernels_.attend[static_cast<size_t>(layout.codec)];
  const uint32_t end = slice.first_token + slice.num_tokens;
  for (uint32_t first = slice.first_token; first < end;) {
    const uint32_t num_tokens = StretchTokens(layout, first, end);
    const Stretch stretch = MakeStretch(segment, first);
    if (first + num_tokens < end) {
      stretch_->fetch = BeginFetch(slice, first + num_tokens);
    } else if (next != nullptr) {
      stretch_->fetch = BeginFetch(*next, next->first_token);
    }
    for (uint32_t b = 0; b < blocks_.size(); ++b) {
      const uint32_t reach = SetVisible(queries_, b * kRowBlock, segment, first, num_tokens, blocks_[b]);
      if (reach > 0) {
        attend(stretch, reach, blocks_[b], *stretch_);
      }
    }
    first += num_tokens;
  }
}

void RowAttention::Check(const AttendSlice& slice) const {
  KVANT_CHECK(slice.segment.head_dim() == queries_.head_dim, "the cache and the queries are of one model");
  KVANT_CHECK(slice.first_token % codec::kTileTokens == 0, "a slice begins at a tile");
  KVANT_CHECK(slice.first_token + slice.num_tokens <= slice.segment.num_tokens, "a slice lies in its segment");
}

void RowAttention::AddMass(const AttendSlice& slice, std::span<const float> log_sums, std::span<float> mass) {
  const AttendSegment& segment = slice.segment;
  Check(slice);
  KVANT_CHECK(segment.pair == nullptr, "the mass of pair pages is not measured");
  Prepare(segment);
  const auto add_mass = kernels_.add_mass[static_cast<size_t>(segment.layout->codec)];
  for (uint32_t row = 0; row < queries_.num_rows(); ++row) {
    blocks_[row / kRowBlock].log_sum[row % kRowBlock] = log_sums[row] * std::numbers::log2e_v<float>;
  }
  const uint32_t end = slice.first_token + slice.num_tokens;
  for (uint32_t first = slice.first_token; first < end;) {
    const uint32_t num_tokens = StretchTokens(*segment.layout, first, end);
    for (uint32_t b = 0; b < blocks_.size(); ++b) {
      const uint32_t reach = SetVisible(queries_, b * kRowBlock, segment, first, num_tokens, blocks_[b]);
      if (reach > 0) {
        add_mass(MakeStretch(segment, first), reach, blocks_[b], *stretch_, mass.data() + (first - slice.first_token));
      }
    }
    first += num_tokens;
  }
}

void RowAttention::Export(AttendPartial partial) const {
  for (const RowBlock& block : blocks_) {
    kernels_.export_rows(block, queries_.head_dim, partial.out, partial.max, partial.sum);
    partial.out += size_t{block.num_rows} * queries_.head_dim;
    partial.max += block.num_rows;
    partial.sum += block.num_rows;
  }
}

}  // namespace kvant::kernels
