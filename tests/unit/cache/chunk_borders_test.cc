#include "kvant/cache/chunk_borders.h"

#include <gtest/gtest.h>

namespace kvant::cache {
namespace {

TEST(ChunkBordersTest, ChunksLieEndToEndAndOnPages) {
  constexpr uint32_t kLargestPage = 128;
  for (uint32_t chunk = 0; chunk < 100; ++chunk) {
    const uint32_t start = ChunkStart(chunk);
    const uint32_t end = ChunkStart(chunk + 1);
    EXPECT_LT(start, end);
    EXPECT_GE(end - start, chunk == 0 ? 1 : start - ChunkStart(chunk - 1)) << "no shorter than the one before";
    EXPECT_EQ(start % kLargestPage, 0U);
    EXPECT_EQ(ChunksOf(start), chunk);
    EXPECT_EQ(ChunksOf(start + 1), chunk + 1);
    EXPECT_EQ(ChunksOf(end), chunk + 1);
  }
}

TEST(ChunkBordersTest, LengthsAreThoseThatAreDocumented) {
  EXPECT_EQ(ChunkStart(4), 2048U);
  EXPECT_EQ(ChunkStart(18), 16384U);
  EXPECT_EQ(ChunkStart(19), 18432U);
  EXPECT_EQ(ChunksOf(131072), 74U);
}

}  // namespace
}  // namespace kvant::cache
