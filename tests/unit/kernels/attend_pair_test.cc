#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include "unit/kernels/cache_fixture.h"
#include "unit/kernels/isa_test_name.h"

namespace kvant::kernels {
namespace {

using codec::PairFormat;
using codec::PairLayout;
using codec::PairRule;
using codec::WidthMap;

constexpr size_t kRecordOffset = 192;
constexpr double kBound = 3e-3;

/// Widths of the pairs: two of them for the paper's maps, 1 to 4 for those by error.
WidthMap MapOf(uint32_t head_dim, PairLayout pairs, std::initializer_list<uint8_t> widths, uint32_t seed) {
  std::mt19937 random(seed);
  WidthMap map{pairs, {}};
  for (uint32_t i = 0; i < head_dim / 2; ++i) {
    map.widths.push_back(widths.begin()[i * widths.size() / (head_dim / 2)]);
  }
  std::shuffle(map.widths.begin(), map.widths.end(), random);
  return map;
}

/// Pages of random tokens, encoded by the scalar reference.
class PairSegment {
 public:
  PairSegment(const PairFormat& format, const WidthMap& map, uint32_t num_tokens, bool rotated = false,
              int32_t first_position = 0, float key_gain = 1.0F)
      : plan_(std::make_unique<PairPlan>(format, map)),
        num_tokens_(num_tokens),
        rotated_(rotated),
        first_position_(first_position) {
    std::mt19937 random(7 * num_tokens + format.head_dim);
    std::normal_distribution<float> normal;
    std::vector<Half> keys(size_t{format.page_tokens} * format.head_dim);
    std::vector<Half> values(keys.size());
    for (uint32_t first = 0; first < num_tokens; first += format.page_tokens) {
      for (size_t i = 0; i < keys.size(); ++i) {
        const size_t c = i % format.head_dim;
        keys[i] = ToHalf(key_gain * normal(random) + (c % 5 == 0 ? 2.0F : 0.0F));
        values[i] = ToHalf(normal(random));
      }
      const codec::PairPage page = codec::EncodePairPageRef(format, map, keys.data(), values.data(), format.head_dim);
      pages_.emplace_back(kRecordOffset + plan_->layout().total_bytes);
      codec::SerializePairPage(format, map, page, std::span(pages_.back()).subspan(kRecordOffset));
    }
    for (const auto& page : pages_) pointers_.push_back(page.data());
  }

  AttendSegment view() const {
    AttendSegment segment;
    segment.pair = plan_.get();
    segment.rotated_values = rotated_;
    segment.pages = pointers_;
    segment.record_offset = kRecordOffset;
    segment.num_tokens = num_tokens_;
    segment.first_position = first_position_;
    return segment;
  }
  AttendSlice Slice(uint32_t first, uint32_t count) const { return {view(), first, count}; }
  AttendSlice All() const { return Slice(0, num_tokens_); }

 private:
  std::unique_ptr<PairPlan> plan_;
  uint32_t num_tokens_;
  bool rotated_;
  int32_t first_position_;
  std::vector<std::vector<std::byte>> pages_;
  std::vector<const std::byte*> pointers_;
};

WidthMap PaperMap(uint32_t head_dim) { return MapOf(head_dim, PairLayout::kHalfSplit, {1, 3}, head_dim); }
WidthMap AllWidths(uint32_t head_dim) { return MapOf(head_dim, PairLayout::kInterleaved, {1, 1, 2, 3, 4}, head_dim); }

std::vector<int32_t> LastPositions(uint32_t num_tokens, uint32_t num_queries) {
  std::vector<int32_t> positions(num_queries);
  for (uint32_t i = 0; i < num_queries; ++i) {
    positions[i] = std::max(0, static_cast<int32_t>(num_tokens) - static_cast<int32_t>(num_queries - i));
  }
  return positions;
}

class AttendPairTest : public testing::TestWithParam<Isa> {
 protected:
  void ExpectAgrees(std::span<const AttendSlice> chunk, const AttendQueries& queries, const std::string& what,
                    double bound = kBound) const {
    EXPECT_LE(RelativeError(AttendAll(GetParam(), queries, chunk), AttendAllRef(queries, chunk)), bound) << what;
  }
  void ExpectAgrees(const PairSegment& segment, uint32_t heads, uint32_t num_queries, const std::string& what) const {
    const AttendSlice chunk[] = {segment.All()};
    const RandomQueries queries(segment.view().head_dim(), heads, LastPositions(chunk[0].num_tokens, num_queries), 7);
    ExpectAgrees(chunk, queries.view(), what);
  }
};
INSTANTIATE_TEST_SUITE_P(Isas, AttendPairTest, testing::ValuesIn(AvailableIsas()), IsaTestName);

TEST_P(AttendPairTest, AgreesOverHeadDimsAndRaggedCounts) {
  for (uint32_t head_dim = 32; head_dim <= 256; head_dim += 16) {
    for (const uint32_t num_tokens : {1U, 31U, 127U, 128U, 129U, 300U}) {
      const PairFormat format{head_dim, 128, 2, head_dim};
      ExpectAgrees(PairSegment(format, PaperMap(head_dim), num_tokens), 3, 3,
                   "pnmix d=" + std::to_string(head_dim) + " n=" + std::to_string(num_tokens));
      ExpectAgrees(PairSegment(format, AllWidths(head_dim), num_tokens), 3, 3,
                   "pairs d=" + std::to_string(head_dim) + " n=" + std::to_string(num_tokens));
    }
  }
}

TEST_P(AttendPairTest, AgreesOverValueBitsAndGroups) {
  for (const uint32_t head_dim : {32U, 64U, 80U, 96U, 128U, 256U}) {
    for (const uint32_t bits : {2U, 3U, 4U, 8U}) {
      for (const uint32_t group : {16U, 32U, 64U, head_dim}) {
        for (const PairRule rule : {PairRule::kMinMax, PairRule::kMidRise}) {
          if (head_dim % group != 0) continue;
          const PairFormat format{head_dim, 128, bits, group, rule, rule};
          ExpectAgrees(PairSegment(format, AllWidths(head_dim), 200, rule == PairRule::kMidRise), 2, 2,
                       "d=" + std::to_string(head_dim) + " v=" + std::to_string(bits) + " vg=" + std::to_string(group));
        }
      }
    }
  }
}

TEST_P(AttendPairTest, AgreesOverGroupedHeadsAndQueries) {
  for (const uint32_t head_dim : {64U, 128U}) {
    const PairSegment segment({head_dim, 128, 2, head_dim}, PaperMap(head_dim), 300);
    for (const uint32_t heads : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U, 12U, 16U}) {
      for (const uint32_t num_queries : {1U, 3U, 17U}) {
        ExpectAgrees(segment, heads, num_queries,
                     "heads " + std::to_string(heads) + " queries " + std::to_string(num_queries));
      }
    }
  }
  ExpectAgrees(PairSegment({64, 128, 4, 64}, AllWidths(64), 600), 3, 512, "512 queries");
}

TEST_P(AttendPairTest, AgreesOverUniformWidthsAndPageSizes) {
  for (const uint8_t width : {uint8_t{1}, uint8_t{2}, uint8_t{3}, uint8_t{4}}) {
    for (const uint32_t page_tokens : {32U, 64U, 128U}) {
      for (const uint32_t bits : {2U, 8U}) {
        const PairFormat format{64, page_tokens, bits, 64};
        ExpectAgrees(PairSegment(format, MapOf(64, PairLayout::kHalfSplit, {width}, 1), 300), 3, 3,
                     "width " + std::to_string(width) + " page " + std::to_string(page_tokens));
      }
    }
  }
}

// fp16 sinks, pages whose values may be turned, fp16 residual: one softmax. The sinks' and the residual's are not
// turned.
TEST_P(AttendPairTest, SinksPagesAndResidualShareOneSoftmax) {
  for (const bool rotated : {false, true}) {
    for (const uint32_t head_dim : {64U, 96U}) {
      const RandomSegment sinks({codec::TokenCodec::kFp16, head_dim, 32, false, 0.0F, 128, 0}, 1);
      const PairSegment pages({head_dim, 128, 2, head_dim, PairRule::kMidRise, PairRule::kMidRise}, AllWidths(head_dim),
                              384, rotated, 32);
      const PairSegment others({head_dim, 128, 4, head_dim}, PaperMap(head_dim), 128, false, 416);
      const RandomSegment tail({codec::TokenCodec::kFp16, head_dim, 21, false, 0.0F, 128, 544}, 3);
      const RandomQueries queries(head_dim, 3, {564, 550, 300, 40, 2}, 4);
      const AttendSlice chunk[] = {sinks.All(), pages.All(), others.All(), tail.All()};
      ExpectAgrees(chunk, queries.view(), "rotated " + std::to_string(rotated));
      const AttendSlice reversed[] = {tail.All(), others.All(), pages.Slice(128, 256), pages.Slice(0, 128),
                                      sinks.All()};
      ExpectAgrees(reversed, queries.view(), "reversed, rotated " + std::to_string(rotated));
    }
  }
}

// As a spectrum's int4 tokens do: each sees, and is seen, by its own position.
TEST_P(AttendPairTest, TokensThatStandApartAreSeenFromTheirPositionsOn) {
  constexpr uint32_t kTokens = 384;
  const PairSegment segment({64, 128, 4, 64}, MapOf(64, PairLayout::kHalfSplit, {4}, 1), kTokens);
  std::vector<int32_t> positions(kTokens);
  for (uint32_t i = 0; i < kTokens; ++i) {
    positions[i] = static_cast<int32_t>(3 * i + i % 2 + (i > 200 ? 50 : 0));
  }
  const RandomSegment tail({codec::TokenCodec::kFp16, 64, 21, false, 0.0F, 128, 1203}, 3);
  AttendSlice slices[] = {segment.All(), tail.All()};
  slices[0].segment.positions = positions.data();
  const RandomQueries queries(64, 3, {1223, 1210, 700, 610, 300, 4, 0}, 4);
  for (const uint32_t window : {0U, 30U, 400U, 5000U}) {
    AttendQueries view = queries.view();
    view.window = window;
    ExpectAgrees(slices, view, "window " + std::to_string(window));
  }
}

TEST_P(AttendPairTest, WindowsAndCaps) {
  const RandomSegment sinks({codec::TokenCodec::kFp16, 64, 4, false, 0.0F, 16, 0}, 1);
  const PairSegment pages({64, 128, 2, 64}, PaperMap(64), 500, true, 4);
  const RandomSegment tail({codec::TokenCodec::kFp16, 64, 21, false, 0.0F, 128, 504}, 3);
  const RandomQueries queries(64, 3, {524, 510, 505, 300, 131, 2}, 4);
  const AttendSlice chunk[] = {sinks.All(), pages.All(), tail.All()};
  for (const uint32_t window : {0U, 1U, 7U, 128U, 200U, 299U, 5000U}) {
    for (const float cap : {0.0F, 5.0F, 50.0F}) {
      AttendQueries view = queries.view();
      view.window = window;
      view.logit_cap = cap;
      ExpectAgrees(chunk, view, "window " + std::to_string(window) + " cap " + std::to_string(cap));
    }
  }
}

// Whether sums are made relative to a larger logit or not, at first or at last: 0.2 to 25 bits above the earlier ones.
TEST_P(AttendPairTest, LargestLogitsMayRiseAndFall) {
  std::vector<AttendSlice> slices;
  std::vector<std::unique_ptr<PairSegment>> segments;
  int32_t position = 0;
  for (const float gain : {0.02F, 0.5F, 1.0F, 1.5F, 4.0F}) {
    segments.push_back(
        std::make_unique<PairSegment>(PairFormat{64, 128, 4, 64}, AllWidths(64), 256, false, position, gain));
    slices.push_back(segments.back()->All());
    position += 256;
  }
  const RandomQueries queries(64, 8, {position}, 5);
  ExpectAgrees(slices, queries.view(), "rising");
  std::reverse(slices.begin(), slices.end());
  ExpectAgrees(slices, queries.view(), "falling");
  std::swap(slices[1], slices[4]);
  ExpectAgrees(slices, queries.view(), "up and down");
}

// All weight on a few tokens, and no infinity or NaN on the way.
TEST_P(AttendPairTest, SharpSoftmaxStaysFinite) {
  const PairSegment segment({128, 128, 2, 128}, PaperMap(128), 300, false, 0, 4.0F);
  const RandomQueries queries(128, 8, {299}, 12);
  AttendQueries view = queries.view();
  view.scale = 1.0F;
  const AttendSlice chunk[] = {segment.All()};
  ExpectAgrees(chunk, view, "sharp", 0.05);
}

TEST_P(AttendPairTest, ZeroQueriesGiveTheMean) {
  const PairSegment segment({64, 128, 2, 64}, PaperMap(64), 130);
  std::vector<float> zeros(64, 0.0F);
  const int32_t position = 129;
  const AttendQueries queries{zeros.data(), 64, 64, 1, 1, 64, 0.125F, std::span(&position, 1)};
  const AttendSlice chunk[] = {segment.All()};
  ExpectAgrees(chunk, queries, "zero");
}

TEST_P(AttendPairTest, RowsThatSeeNothingAreEmpty) {
  const PairSegment segment({64, 128, 2, 64}, PaperMap(64), 40, true, 1000);
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

// The same rows in one call and cut into calls of every size, whole pages in one chunk or several: the bits may not
// differ.
TEST_P(AttendPairTest, RowsDoNotDependOnTheirNeighbours) {
  for (const uint32_t heads : {1U, 3U}) {
    for (const uint32_t bits : {2U, 4U, 8U}) {
      std::vector<int32_t> positions(23);
      std::iota(positions.begin(), positions.end(), 240);
      positions[5] = 3;
      positions[11] = -1;
      const PairSegment segment({96, 128, bits, 96}, AllWidths(96), 262, true);
      const RandomQueries queries(96, heads, positions, 2);
      const AttendSlice chunk[] = {segment.Slice(0, 128), segment.Slice(128, 134)};
      const ChunkResult whole = RunChunk(GetParam(), queries.view(), chunk);
      for (const uint32_t step : {1U, 2U, 3U, 5U, 8U, 20U}) {
        for (uint32_t first = 0; first < 23; first += step) {
          const AttendQueries part = queries.Part(first, std::min(step, 23 - first));
          const ChunkResult got = RunChunk(GetParam(), part, chunk);
          const size_t at = size_t{first} * heads;
          EXPECT_EQ(0, std::memcmp(got.out.data(), whole.out.data() + at * 96, got.out.size() * sizeof(float)));
          EXPECT_EQ(0, std::memcmp(got.max.data(), whole.max.data() + at, got.max.size() * sizeof(float)));
          EXPECT_EQ(0, std::memcmp(got.sum.data(), whole.sum.data() + at, got.sum.size() * sizeof(float)));
        }
      }
    }
  }
}

TEST(PairPlan, PlanesFollowTheFormat) {
  WidthMap map{PairLayout::kInterleaved, std::vector<uint8_t>(16, 1)};
  map.widths[3] = 3;  // channels 6 and 7
  const PairPlan plan({32, 32, 2, 32}, map);
  EXPECT_EQ(plan.order()[0], 6);
  EXPECT_EQ(plan.order()[1], 7);
  EXPECT_EQ(plan.order()[2], 0);
  const std::vector<uint16_t> planes(plan.planes().begin(), plan.planes().begin() + 7);
  EXPECT_EQ(planes, (std::vector<uint16_t>{6, 32, 34, 7, 33, 35, 0}));
  constexpr uint16_t kNone = PairPlan::kNoPlane;
  const std::vector<uint16_t> sixes(plan.sixes().begin(), plan.sixes().end());
  EXPECT_EQ(sixes, (std::vector<uint16_t>{34, 35, 0,     1,     2,     3,      //
                                          32, 33, kNone, kNone, kNone, kNone,  //
                                          6,  7,  kNone, kNone, kNone, kNone,  //
                                          4,  5,  8,     9,     10,    11,     //
                                          12, 13, 14,    15,    16,    17,     //
                                          18, 19, 20,    21,    22,    23,     //
                                          24, 25, 26,    27,    28,    29,     //
                                          30, 31, kNone, kNone, kNone, kNone}));
}

}  // namespace
}  // namespace kvant::kernels
