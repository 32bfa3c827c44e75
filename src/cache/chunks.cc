#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"

namespace kvant::cache {
namespace {

uint32_t ChunksOf(uint32_t tokens) { return static_cast<uint32_t>(CeilDiv(tokens, kChunkTokens)); }

}  // namespace

kernels::AttendSegment LayerCache::SegmentOf(const PageRun& run, uint32_t kv_head, uint32_t first_position) const {
  kernels::AttendSegment segment;
  segment.layout = &run.layout();
  segment.pages = run.pages();
  segment.record_offset = run.record_offset(kv_head);
  segment.num_tokens = run.num_tokens();
  segment.first_position = static_cast<int32_t>(first_position);
  if (&run == &encoded_ && equalization_) {
    segment.key_mean = equalization_->MeanOf(kv_head).data();
    segment.key_scale = equalization_->ScaleOf(kv_head).data();
  }
  return segment;
}

uint32_t LayerCache::num_chunks_before(uint32_t tokens) const {
  const uint32_t after_sinks = tokens - std::min(tokens, sinks_.num_tokens());
  const uint32_t in_encoded = std::min(after_sinks, encoded_.num_tokens());
  return std::max(ChunksOf(in_encoded) + ChunksOf(after_sinks - in_encoded), 1U);
}

// The sinks go with the first chunk; encoded and residual tokens are cut every kChunkTokens from their own beginning.
ChunkSlices LayerCache::Chunk(uint32_t kv_head, uint32_t chunk) const {
  KVANT_CHECK(chunk < num_chunks(), "a chunk of this layer");
  ChunkSlices result;
  const auto add = [&](const PageRun& run, uint32_t first_position, uint32_t first, uint32_t tokens) {
    if (tokens > 0) {
      result.slices[result.count++] = {SegmentOf(run, kv_head, first_position), first, tokens};
    }
  };
  if (chunk == 0) {
    add(sinks_, 0, 0, sinks_.num_tokens());
  }
  const bool in_encoded = chunk < ChunksOf(encoded_.num_tokens());
  const PageRun& run = in_encoded ? encoded_ : residual_;
  const uint32_t first = (in_encoded ? chunk : chunk - ChunksOf(encoded_.num_tokens())) * kChunkTokens;
  const uint32_t position = sinks_.num_tokens() + (in_encoded ? 0 : encoded_.num_tokens());
  add(run, position, first, std::min(kChunkTokens, run.num_tokens() - std::min(first, run.num_tokens())));
  return result;
}

}  // namespace kvant::cache
