#include <algorithm>

#include "kvant/cache/sequence.h"

namespace kvant::cache {
kernels::AttendSegment LayerCache::SegmentOf(const PageRun& run, uint32_t kv_head, uint32_t first_position) const {
  kernels::AttendSegment segment;
  segment.layout = &run.layout();
  segment.pages = run.pages();
  segment.record_offset = run.record_offset(kv_head);
  segment.num_tokens = run.num_tokens();
  segment.first_position = static_cast<int32_t>(first_position);
  return segment;
}

kernels::AttendSegment LayerCache::TierSegment(codec::Tier tier, uint32_t kv_head) const {
  kernels::AttendSegment segment = SegmentOf(run(tier), kv_head, sinks_.num_tokens());
  if (equalization_ && codec::HasScale(segment.layout->codec)) {
    segment.key_mean = equalization_->MeanOf(kv_head).data();
    segment.key_scale = equalization_->ScaleOf(kv_head).data();
  }
  if (precision_.spectrum) {
    const uint32_t in_pages = tier == codec::Tier::kInt4 ? pages_.num_tokens() : 0;
    segment.positions = positions_[static_cast<size_t>(tier)][kv_head].data() + in_pages;
  }
  return segment;
}

uint32_t LayerCache::num_chunks_before(uint32_t tokens) const {
  const uint32_t after_sinks = tokens - std::min(tokens, sinks_.num_tokens());
  const uint32_t in_encoded = std::min(after_sinks, num_encoded());
  uint32_t chunks = 0;
  for (const PageRun& run : tiers_) {
    // The first tokens of a spectrum may lie in any tier.
    chunks += ChunksOf(precision_.spectrum ? run.num_tokens() : std::min(run.num_tokens(), in_encoded));
  }
  chunks += ChunksOf(precision_.spectrum ? pages_.num_tokens() : std::min(pages_.num_tokens(), in_encoded));
  return std::max(chunks + ChunksOf(after_sinks - in_encoded), 1U);
}

uint32_t LayerCache::first_chunk_of(uint32_t position) const {
  return precision_.spectrum ? 0 : num_chunks_before(position) - 1;  // tiers hold any positions
}

// The sinks go with the first chunk; each tier, the pages and the residual are cut from their own beginning.
ChunkSlices LayerCache::Chunk(uint32_t kv_head, uint32_t chunk) const {
  ChunkSlices result;
  const auto add = [&](const kernels::AttendSegment& segment, uint32_t index, uint32_t released) {
    const uint32_t end = std::min(ChunkStart(index + 1), segment.num_tokens);
    const uint32_t begin = std::max(ChunkStart(index), released);
    if (begin < end) {
      result.slices[result.count++] = {segment, begin, end - begin};
    }
  };
  if (chunk == 0) {
    add(SegmentOf(sinks_, kv_head, 0), 0, sinks_.num_released());
  }
  uint32_t index = chunk;
  for (const codec::Tier tier : codec::kStoredTiers) {
    const uint32_t chunks = ChunksOf(run(tier).num_tokens());
    if (index < chunks) {
      add(TierSegment(tier, kv_head), index, run(tier).num_released());
      return result;
    }
    index -= chunks;
  }
  if (const uint32_t chunks = ChunksOf(pages_.num_tokens()); index < chunks) {
    add(PairSegment(kv_head), index, pages_.num_released());
    return result;
  } else {
    index -= chunks;
  }
  add(SegmentOf(residual_, kv_head, sinks_.num_tokens() + num_encoded()), index, residual_.num_released());
  return result;
}

}  // namespace kvant::cache
