#pragma once

#include <cstdint>

namespace kvant::cache {

/// Borders of chunks, the units of attention work, in a run of tokens: a function of position alone, so that a token's
/// chunk does not change as more come. The first chunks are short, for several threads to share a short context;
/// later ones are longer, since to begin a chunk, to write its result and to merge that costs the same for any length.
///
/// Four chunks of 512 tokens, fourteen of 1,024 (to 16,384), then 2,048 each.
struct ChunkLengths {
  uint32_t first_token;
  uint32_t first_chunk;
  uint32_t length;
};
inline constexpr ChunkLengths kChunkLengths[] = {{0, 0, 512}, {2048, 4, 1024}, {16384, 18, 2048}};

constexpr uint32_t ChunkStart(uint32_t chunk) {
  uint32_t start = 0;
  for (const ChunkLengths& lengths : kChunkLengths) {
    if (chunk >= lengths.first_chunk) {
      start = lengths.first_token + (chunk - lengths.first_chunk) * lengths.length;
    }
  }
  return start;
}

/// Chunks that the first `tokens` tokens lie in.
constexpr uint32_t ChunksOf(uint32_t tokens) {
  uint32_t chunks = 0;
  for (const ChunkLengths& lengths : kChunkLengths) {
    if (tokens > lengths.first_token) {
      chunks = lengths.first_chunk + (tokens - lengths.first_token + lengths.length - 1) / lengths.length;
    }
  }
  return chunks;
}

}  // namespace kvant::cache
