#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "unit/kernels/cache_fixture.h"

namespace kvant::kernels {
namespace {

using codec::TokenCodec;

void Append(ChunkResult& whole, const ChunkResult& part) {
  whole.out.insert(whole.out.end(), part.out.begin(), part.out.end());
  whole.max.insert(whole.max.end(), part.max.begin(), part.max.end());
  whole.sum.insert(whole.sum.end(), part.sum.begin(), part.sum.end());
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The same rows in one call and cut into calls of every size: the bits may not differ.
TEST(AttendGroupingTest, RowsDoNotDependOnTheirNeighbours) {
  for (const Isa isa : AvailableIsas()) {
    for (const TokenCodec codec : {TokenCodec::kFp16, TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine}) {
      for (const uint32_t head_dim : {40U, 64U, 100U, 128U}) {
        for (const uint32_t heads : {1U, 3U}) {
          std::vector<int32_t> positions(23);
          std::iota(positions.begin(), positions.end(), 240);
          positions[5] = 3;
          positions[11] = -1;
          const RandomSegment segment({codec, head_dim, 262, true}, 1);
          const RandomQueries queries(head_dim, heads, positions, 2);
          const AttendSlice chunk[] = {segment.Slice(0, 16), segment.Slice(16, 246)};
          const ChunkResult whole = RunChunk(isa, queries.view(), chunk);
          for (const uint32_t step : {1U, 2U, 3U, 5U, 8U, 20U}) {
            ChunkResult parts;
            for (uint32_t first = 0; first < 23; first += step) {
              Append(parts, RunChunk(isa, queries.Part(first, std::min(step, 23 - first)), chunk));
            }
            EXPECT_TRUE(SameBits(whole.out, parts.out)) << IsaName(isa) << " by " << step;
            EXPECT_TRUE(SameBits(whole.max, parts.max)) << IsaName(isa) << " by " << step;
            EXPECT_TRUE(SameBits(whole.sum, parts.sum)) << IsaName(isa) << " by " << step;
          }
        }
      }
    }
  }
}

TEST(AttendGroupingTest, ScratchMayBeReusedByCallsOfEverySize) {
  const RandomSegment segment({TokenCodec::kInt4Affine, 64, 262, true}, 1);
  const RandomQueries queries(64, 3, std::vector<int32_t>(40, 261), 2);
  const AttendSlice chunk[] = {segment.All()};
  AttendScratch scratch;
  for (const uint32_t count : {40U, 1U, 7U, 40U}) {
    const AttendQueries part = queries.Part(0, count);
    ChunkResult got{std::vector<float>(part.num_rows() * 64), std::vector<float>(part.num_rows()),
                    std::vector<float>(part.num_rows())};
    RowAttention(BestIsa(), part, scratch).Attend(chunk, nullptr, {got.out.data(), got.max.data(), got.sum.data()});
    EXPECT_TRUE(SameBits(got.out, RunChunk(BestIsa(), part, chunk).out));
  }
}

}  // namespace
}  // namespace kvant::kernels
