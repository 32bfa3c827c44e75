#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <tuple>

#include "unit/kernels/cache_fixture.h"
#include "unit/kernels/isa_test_name.h"

namespace kvant::kernels {
namespace {

using codec::TokenCodec;

constexpr TokenCodec kAllCodecs[] = {TokenCodec::kFp16, TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine};

double Bound(TokenCodec codec) { return codec == TokenCodec::kFp16 ? 1e-5 : 3e-3; }

// The last `num_queries` positions of a context of `num_tokens`: each sees a different prefix.
std::vector<int32_t> LastPositions(uint32_t num_tokens, uint32_t num_queries) {
  std::vector<int32_t> positions(num_queries);
  for (uint32_t i = 0; i < num_queries; ++i) {
    positions[i] = std::max(0, static_cast<int32_t>(num_tokens) - static_cast<int32_t>(num_queries - i));
  }
  return positions;
}

std::string CaseName(const SegmentSpec& spec, uint32_t heads, uint32_t queries) {
  return std::string(codec::TokenCodecName(spec.codec)) + " d=" + std::to_string(spec.head_dim) +
         " tokens=" + std::to_string(spec.num_tokens) + " eq=" + std::to_string(spec.equalized) +
         " heads=" + std::to_string(heads) + " queries=" + std::to_string(queries);
}

void ExpectAgrees(Isa isa, const SegmentSpec& spec, uint32_t heads, uint32_t num_queries) {
  const RandomSegment segment(spec, spec.num_tokens + spec.head_dim);
  const RandomQueries queries(spec.head_dim, heads, LastPositions(spec.num_tokens, num_queries), 7);
  const AttendSlice chunk[] = {segment.All()};
  const double error = RelativeError(AttendAll(isa, queries.view(), chunk), AttendAllRef(queries.view(), chunk));
  EXPECT_LE(error, Bound(spec.codec)) << IsaName(isa) << ' ' << CaseName(spec, heads, num_queries);
}

class AttendIsaTest : public testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(Isas, AttendIsaTest, testing::ValuesIn(AvailableIsas()), IsaTestName);

TEST_P(AttendIsaTest, AgreesWithReferenceOverHeadDimsAndRaggedCounts) {
  for (const TokenCodec codec : kAllCodecs) {
    for (const uint32_t head_dim : {32U, 40U, 64U, 80U, 96U, 100U, 128U, 256U}) {
      for (const uint32_t num_tokens : {1U, 2U, 15U, 16U, 17U, 31U, 127U, 128U, 129U, 300U}) {
        for (const bool equalized : {false, true}) {
          ExpectAgrees(GetParam(), {codec, head_dim, num_tokens, equalized}, 3, 3);
        }
      }
    }
  }
}

TEST_P(AttendIsaTest, AgreesWithReferenceOverGroupedHeadsAndQueries) {
  for (const TokenCodec codec : kAllCodecs) {
    for (const uint32_t heads : {1U, 2U, 3U, 4U, 8U, 16U}) {
      for (const uint32_t num_queries : {1U, 3U, 17U}) {
        for (const uint32_t head_dim : {64U, 128U}) {
          ExpectAgrees(GetParam(), {codec, head_dim, 300, true}, heads, num_queries);
        }
      }
    }
  }
}

TEST_P(AttendIsaTest, AgreesWithReferenceFor512Queries) {
  for (const TokenCodec codec : kAllCodecs) {
    ExpectAgrees(GetParam(), {codec, 64, 600, true}, 3, 512);
    ExpectAgrees(GetParam(), {codec, 100, 300, false}, 1, 512);
  }
}

TEST_P(AttendIsaTest, AgreesWithReferenceOnSmallAndLargePages) {
  for (const TokenCodec codec : kAllCodecs) {
    for (const uint32_t page_tokens : {16U, 48U, 256U, 400U}) {
      ExpectAgrees(GetParam(), {codec, 64, 390, true, 0.0F, page_tokens}, 3, 3);
    }
  }
}

TEST_P(AttendIsaTest, EqualizedKeysMayHaveHugeOffsets) {
  for (const TokenCodec codec : {TokenCodec::kInt8, TokenCodec::kInt4Affine}) {
    ExpectAgrees(GetParam(), {codec, 64, 300, true, 200.0F}, 3, 3);
    ExpectAgrees(GetParam(), {codec, 128, 300, true, 200.0F}, 8, 1);
  }
}

// Sinks, encoded middle, fp16 tail: three formats under one running softmax.
TEST_P(AttendIsaTest, SlicesOfSeveralFormatsShareOneSoftmax) {
  for (const TokenCodec codec : kAllCodecs) {
    const RandomSegment sinks({TokenCodec::kFp16, 64, 4, false, 0.0F, 16, 0}, 1);
    const RandomSegment middle({codec, 64, 500, codec != TokenCodec::kFp16, 20.0F, 128, 4}, 2);
    const RandomSegment tail({TokenCodec::kFp16, 64, 21, false, 0.0F, 128, 504}, 3);
    const RandomQueries queries(64, 3, {524, 510, 300, 2}, 4);
    const AttendSlice chunk[] = {sinks.All(), middle.All(), tail.All()};
    const double error =
        RelativeError(AttendAll(GetParam(), queries.view(), chunk), AttendAllRef(queries.view(), chunk));
    EXPECT_LE(error, Bound(codec)) << codec::TokenCodecName(codec);
  }
}

// Tiers of a spectrum: each token at a position of its own, and queries among them see a prefix of every tier.
TEST_P(AttendIsaTest, TokensThatStandApartAreSeenFromTheirPositionsOn) {
  for (const TokenCodec codec : kAllCodecs) {
    const bool equalized = codec != TokenCodec::kFp16;
    const RandomSegment odd({codec, 64, 300, equalized, 5.0F, 128, 1, 2}, 1);
    const RandomSegment even({TokenCodec::kFp16, 64, 300, false, 0.0F, 128, 0, 2}, 2);
    const RandomQueries queries(64, 3, {0, 1, 2, 255, 256, 257, 400, 599, 10000}, 4);
    const AttendSlice chunk[] = {odd.All(), even.All()};
    const double error =
        RelativeError(AttendAll(GetParam(), queries.view(), chunk), AttendAllRef(queries.view(), chunk));
    EXPECT_LE(error, Bound(codec)) << codec::TokenCodecName(codec);
  }
}

// Windows that begin in a stretch, between two and before all; each row has its own.
TEST_P(AttendIsaTest, AWindowHidesWhatHasLeftIt) {
  for (const TokenCodec codec : kAllCodecs) {
    for (const uint32_t window : {1U, 7U, 128U, 200U, 299U, 300U, 5000U}) {
      const RandomSegment sinks({TokenCodec::kFp16, 64, 4, false, 0.0F, 16, 0}, 1);
      const RandomSegment middle({codec, 64, 500, codec != TokenCodec::kFp16, 20.0F, 128, 4}, 2);
      const RandomSegment tail({TokenCodec::kFp16, 64, 21, false, 0.0F, 128, 504}, 3);
      const RandomQueries queries(64, 3, {524, 510, 505, 300, 131, 2}, 4);
      AttendQueries view = queries.view();
      view.window = window;
      const AttendSlice chunk[] = {sinks.All(), middle.All(), tail.All()};
      const double error = RelativeError(AttendAll(GetParam(), view, chunk), AttendAllRef(view, chunk));
      EXPECT_LE(error, Bound(codec)) << codec::TokenCodecName(codec) << " window " << window;
    }
  }
}

TEST_P(AttendIsaTest, AWindowCountsPositionsNotTokens) {
  const RandomSegment odd({TokenCodec::kInt8, 64, 300, true, 5.0F, 128, 1, 2}, 1);
  const RandomSegment even({TokenCodec::kFp16, 64, 300, false, 0.0F, 128, 0, 2}, 2);
  const RandomQueries queries(64, 3, {0, 1, 63, 255, 256, 257, 400, 599}, 4);
  AttendQueries view = queries.view();
  view.window = 64;
  const AttendSlice chunk[] = {odd.All(), even.All()};
  EXPECT_LE(RelativeError(AttendAll(GetParam(), view, chunk), AttendAllRef(view, chunk)), Bound(TokenCodec::kInt8));
}

// Of logits far below, around and far above the cap; the mean of equalized keys is inside.
TEST_P(AttendIsaTest, ACapBendsTheLogits) {
  for (const TokenCodec codec : kAllCodecs) {
    for (const float scale : {0.125F, 1.0F, 20.0F}) {
      for (const float cap : {0.5F, 5.0F, 50.0F}) {
        const RandomSegment segment({codec, 64, 300, codec != TokenCodec::kFp16, 3.0F}, 11);
        const RandomQueries queries(64, 3, {299, 150}, 12);
        AttendQueries view = queries.view();
        view.scale = scale;
        view.logit_cap = cap;
        const AttendSlice chunk[] = {segment.All()};
        const double bound = scale > 10.0F ? 0.02 : 2 * Bound(codec);
        EXPECT_LE(RelativeError(AttendAll(GetParam(), view, chunk), AttendAllRef(view, chunk)), bound)
            << codec::TokenCodecName(codec) << " scale " << scale << " cap " << cap;
      }
    }
  }
}

void ExpectMass(Isa isa, const AttendQueries& view, const AttendSlice& slice) {
  const double bound = slice.segment.layout->codec == TokenCodec::kFp16 ? 1e-5 : 5e-4;
  AttendScratch scratch;
  const ChunkResult partial = RunChunk(isa, view, std::span(&slice, 1));
  std::vector<float> log_sums;
  for (uint32_t row = 0; row < view.num_rows(); ++row) {
    log_sums.push_back(partial.max[row] + std::log(partial.sum[row]));
  }
  std::vector<float> mass(304);
  RowAttention(isa, view, scratch).AddMass(slice, log_sums, mass);
  std::vector<double> expected(300);
  for (uint32_t row = 0; row < view.num_rows(); ++row) {
    const std::vector<double> weights = WeightsRef(view, row, slice);
    for (size_t t = 0; t < weights.size(); ++t) {
      expected[t] += weights[t];
    }
  }
  double total = 0;
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_NEAR(static_cast<double>(mass[t]), expected[t], bound * view.num_rows()) << t;
    total += static_cast<double>(mass[t]);
  }
  EXPECT_NEAR(total, view.num_rows(), 1e-3);
  EXPECT_EQ(mass[301], 0.0F);
}

TEST_P(AttendIsaTest, MassIsWhatTheRowsPayEachToken) {
  for (const TokenCodec codec : kAllCodecs) {
    const RandomSegment segment({codec, 80, 300, codec != TokenCodec::kFp16}, 5);
    for (const uint32_t heads : {1U, 3U, 8U}) {
      const RandomQueries queries(80, heads, {299, 250, 100, 17, 0}, 6);
      for (const uint32_t window : {0U, 40U, 200U}) {
        for (const float cap : {0.0F, 2.0F}) {
          AttendQueries view = queries.view();
          view.window = window;
          view.logit_cap = cap;
          ExpectMass(GetParam(), view, segment.All());
        }
      }
    }
  }
}

TEST_P(AttendIsaTest, ChunksMergeToTheWhole) {
  for (const TokenCodec codec : kAllCodecs) {
    const RandomSegment segment({codec, 80, 700, true}, 5);
    const RandomQueries queries(80, 4, {699, 650, 100}, 6);
    const AttendSlice whole[] = {segment.All()};
    const AttendSlice parts[] = {segment.Slice(0, 64), segment.Slice(64, 272), segment.Slice(336, 364)};
    std::vector<ChunkResult> partials;
    for (const AttendSlice& part : parts) {
      partials.push_back(RunChunk(GetParam(), queries.view(), std::span(&part, 1)));
    }
    const uint32_t num_rows = queries.view().num_rows();
    std::vector<float> merged(num_rows * 80);
    for (uint32_t row = 0; row < num_rows; ++row) {
      std::vector<const float*> outs;
      std::vector<float> maxes;
      std::vector<float> sums;
      for (const ChunkResult& partial : partials) {
        outs.push_back(partial.out.data() + size_t{row} * 80);
        maxes.push_back(partial.max[row]);
        sums.push_back(partial.sum[row]);
      }
      MergePartials(outs, maxes, sums, std::span(merged).subspan(size_t{row} * 80, 80));
    }
    EXPECT_LE(RelativeError(merged, AttendAllRef(queries.view(), whole)), Bound(codec));
  }
}

TEST_P(AttendIsaTest, RowsThatSeeNothingAreEmpty) {
  for (const TokenCodec codec : kAllCodecs) {
    const RandomSegment segment({codec, 64, 40, false, 0.0F, 128, 1000}, 8);
    const RandomQueries queries(64, 2, {999, 1005, -1}, 9);
    const AttendSlice chunk[] = {segment.All()};
    const ChunkResult result = RunChunk(GetParam(), queries.view(), chunk);
    for (const uint32_t row : {0U, 1U, 4U, 5U}) {
      EXPECT_EQ(result.max[row], -INFINITY);
      EXPECT_EQ(result.sum[row], 0.0F);
      for (uint32_t c = 0; c < 64; ++c) {
        EXPECT_EQ(result.out[row * 64 + c], 0.0F);
      }
    }
    EXPECT_GT(result.sum[2], 0.0F);
  }
}

TEST_P(AttendIsaTest, ZeroQueriesAndZeroCacheGiveTheMean) {
  for (const TokenCodec codec : kAllCodecs) {
    const RandomSegment segment({codec, 64, 130, false}, 10);
    std::vector<float> zeros(64, 0.0F);
    const int32_t position = 129;
    AttendQueries queries{zeros.data(), 64, 64, 1, 1, 64, 0.125F, std::span(&position, 1)};
    const AttendSlice chunk[] = {segment.All()};
    EXPECT_LE(RelativeError(AttendAll(GetParam(), queries, chunk), AttendAllRef(queries, chunk)), Bound(codec));
  }
}

// Logits hundreds apart: all weight on one token, and no infinity or NaN on the way.
TEST_P(AttendIsaTest, SharpSoftmaxStaysFinite) {
  for (const TokenCodec codec : kAllCodecs) {
    const RandomSegment segment({codec, 64, 300, false, 30.0F}, 11);
    const RandomQueries queries(64, 3, {299}, 12);
    AttendQueries view = queries.view();
    view.scale = 5.0F;
    const AttendSlice chunk[] = {segment.All()};
    EXPECT_LE(RelativeError(AttendAll(GetParam(), view, chunk), AttendAllRef(view, chunk)), 0.02);
  }
}

TEST(MergePartialsTest, WeighsByTheMaxima) {
  const float a[] = {2.0F, 4.0F};
  const float b[] = {1.0F, 1.0F};
  const float empty[] = {0.0F, 0.0F};
  const float* outs[] = {a, empty, b};
  const float maxes[] = {0.0F, -INFINITY, std::log(2.0F)};
  const float sums[] = {2.0F, 0.0F, 1.0F};
  std::vector<float> dst(2);
  MergePartials(outs, maxes, sums, dst);
  EXPECT_NEAR(dst[0], (0.5F * 2.0F + 1.0F) / 2.0F, 1e-6F);
  EXPECT_NEAR(dst[1], (0.5F * 4.0F + 1.0F) / 2.0F, 1e-6F);
}

}  // namespace
}  // namespace kvant::kernels
