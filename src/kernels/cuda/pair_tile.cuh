#pragma once

#include "kernels/cuda/token_tile.cuh"

namespace kvant::kernels::cuda {

/// How the key steps of a page are laid out.
enum class PairSteps {
  kAny,           ///< from the map's table in shared memory
  kHalfThreeOne,  ///< PN-Mix 3/1 at 50 %: in every column two steps of three bits, then two of one
};

/// Tokens in a pair page whose values have kGroups groups of channels. `tiles` is the first loaded block, `tail` the
/// scales, `steps` the map's table.
template <int kHeadDim, int kValueBits, int kUnitTiles_, PairSteps kKind, int kGroups>
struct PairTiles {
  static_assert(kValueBits >= 2 && kValueBits <= 4);
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kValueGroups = kGroups;
  static_assert(kSteps % kGroups == 0);
  static constexpr int kUnitTiles = kUnitTiles_;
  static constexpr int kMaskedTiles = kUnitTiles_ < 4 ? kUnitTiles_ : 4;  // never across a page's end: kPairSplitTiles
  static_assert(kPairSplitTiles % kMaskedTiles == 0);
  static constexpr bool kScalesValues = true;
  static constexpr bool kHasKeyZero = false;  ///< key zeros are a page's, not a token's
  static constexpr bool kZerosFollow = true;  ///< value zeros of a tile stand behind those of the tile before
  static_assert(kUnitTiles <= 8);
  static constexpr float kZeroUnit = 1.0F;
  static constexpr float kKeyUnit = 524288.0F;  // 2^19: codes are c · 2^(bit - 24), q carries 2^(5 - bit)
  static constexpr bool kNeedsSteps = kKind == PairSteps::kAny;
  // Three bits are two planes: the lowest bit, then the other two.
  static constexpr bool kHasLowPlane = kValueBits == 3;
  static constexpr int kFieldBits = kHasLowPlane ? 2 : kValueBits;
  static constexpr uint32_t kLowPlaneBytes = kHasLowPlane ? 512 * ValueGroupsOfPlane(kHeadDim, 1) : 0;
  static constexpr uint32_t kValueBlockBytes = kLowPlaneBytes + 512 * ValueGroupsOfPlane(kHeadDim, kFieldBits);

  /// Where the map fixes them: two tiles share a block, a column is 256 bytes a tile.
  static constexpr uint32_t kFixedTileBytes =
      kKind == PairSteps::kHalfThreeOne ? kSteps / 4 * 256 + kValueBlockBytes / 2 : 0;

  uint32_t tiles;  ///< offsets in shared memory
  uint32_t tail;
  uint32_t steps;
  uint32_t block_bytes;
  uint32_t key_tile_bytes;
  uint32_t first_token;  ///< of `tiles`, in the page
  float zero[2];         ///< Σ q·(key zeros) of the page

  KVANT_DEVICE uint32_t KeyTile(int t, uint32_t quarter) const {
    return tiles + (t / 2) * block_bytes + (t % 2) * key_tile_bytes + quarter;
  }

  /// The zero term of the page. Key zeros of two steps are an operand as they are loaded: rows 0…7, all equal, have the
  /// lower halves of both steps and rows 8…15 the upper ones. Four sums that do not wait for each other.
  KVANT_DEVICE void LoadPage(const QueryFragments<kHeadDim>& query, Lane lane) {
    float lower[2][4] = {};
    float upper[2][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      const uint4 a = Load16(tail + 2 * kHeadDim + (i / 2 * 4 + lane.quad) * 16);
      Mma(lower[i / 2 % 2], a.x, a.y, a.z, a.w, query.q[i][0], query.q[i + 1][0]);
      Mma(upper[i / 2 % 2], a.x, a.y, a.z, a.w, query.q[i][1], query.q[i + 1][1]);
    }
    zero[0] = lower[0][0] + lower[1][0] + (upper[0][2] + upper[1][2]);
    zero[1] = lower[0][1] + lower[1][1] + (upper[0][3] + upper[1][3]);
  }

  template <int kTiles>
  KVANT_DEVICE void Scores(float (&s)[kTiles][4], const QueryFragments<kHeadDim>& query, Lane lane) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      for (int j = 0; j < 4; ++j) s[t][j] = 0.0F;
    }
    if constexpr (kKind == PairSteps::kHalfThreeOne) {
#pragma unroll
      for (int column = 0; column < kSteps / 4; ++column) HalfThreeOneColumn<kTiles>(s, column, query, lane);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; i += 2) {
        const uint4 scale = Load16(tail + (i / 2 * 4 + lane.quad) * 16);
        Step<kTiles>(s, steps + i * sizeof(PairDeviceMap::Step), query.q[i], scale.x, scale.y, lane);
        Step<kTiles>(s, steps + (i + 1) * sizeof(PairDeviceMap::Step), query.q[i + 1], scale.z, scale.w, lane);
      }
    }
  }

  /// Four steps of one column: three bits at 0 and 3, at 6 and 9; one bit at 12 and 13, at 14 and 15.
  template <int kTiles>
  KVANT_DEVICE void HalfThreeOneColumn(float (&s)[kTiles][4], int column, const QueryFragments<kHeadDim>& query,
                                       Lane lane) const {
    uint2 w[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) w[t] = Load8(KeyTile(t, column * 256 + lane.id * 8));
    const int wide = 2 * column;
    const int narrow = kSteps / 2 + 2 * column;
    const uint4 wide_scale = Load16(tail + (wide / 2 * 4 + lane.quad) * 16);
    const uint4 narrow_scale = Load16(tail + (narrow / 2 * 4 + lane.quad) * 16);
    FixedStep<kTiles, 3, 0>(s, w, query.q[wide], wide_scale.x, wide_scale.y);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) w[t] = make_uint2(w[t].x >> 6, w[t].y >> 6);
    FixedStep<kTiles, 3, 0>(s, w, query.q[wide + 1], wide_scale.z, wide_scale.w);
    FixedStep<kTiles, 1, 6>(s, w, query.q[narrow], narrow_scale.x, narrow_scale.y);
    FixedStep<kTiles, 1, 8>(s, w, query.q[narrow + 1], narrow_scale.z, narrow_scale.w);
  }

  static KVANT_DEVICE constexpr uint32_t PowerOfTwo(int exponent) { return ((exponent + 15U) << 10) * 0x10001U; }
  static KVANT_DEVICE constexpr uint32_t WeightOfBit(int bit) { return PowerOfTwo(5 - bit); }

  template <int kTiles, int kWidth, int kBit>
  static KVANT_DEVICE void FixedStep(float (&s)[kTiles][4], const uint2 (&w)[kTiles], const uint32_t (&q)[2],
                                     uint32_t scale0, uint32_t scale1) {
    constexpr uint32_t kMask0 = ((1U << kWidth) - 1U) * 0x10001U << kBit;
    constexpr uint32_t kMask1 = kMask0 << kWidth;
    const uint32_t b0 = Bits(__hmul2(__hmul2(AsHalf2(q[0]), AsHalf2(scale0)), AsHalf2(WeightOfBit(kBit))));
    const uint32_t b1 = Bits(__hmul2(__hmul2(AsHalf2(q[1]), AsHalf2(scale1)), AsHalf2(WeightOfBit(kBit + kWidth))));
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Mma(s[t], w[t].x & kMask0, w[t].y & kMask0, w[t].x & kMask1, w[t].y & kMask1, b0, b1);
    }
  }

  template <int kTiles>
  KVANT_DEVICE void Step(float (&s)[kTiles][4], uint32_t step, const uint32_t (&q)[2], uint32_t scale0, uint32_t scale1,
                         Lane lane) const {
    const uint4 place = Load16(step);
    const uint2 weight = Load8(step + 16);
    const uint32_t b0 = Bits(__hmul2(__hmul2(AsHalf2(q[0]), AsHalf2(scale0)), AsHalf2(weight.x)));
    const uint32_t b1 = Bits(__hmul2(__hmul2(AsHalf2(q[1]), AsHalf2(scale1)), AsHalf2(weight.y)));
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint2 w = Load8(KeyTile(t, place.x + lane.id * 8));
      const uint32_t x = w.x >> place.y;
      const uint32_t y = w.y >> place.y;
      Mma(s[t], x & place.z, y & place.z, x & place.w, y & place.w, b0, b1);
    }
  }

  KVANT_DEVICE float Factor(int, uint32_t) const { return kKeyUnit; }

  KVANT_DEVICE uint32_t ValueScales(int t, int group) const {
    return tail + 4 * kHeadDim + (group * kPairPageTokens + first_token + 16 * t) * 2;
  }
  KVANT_DEVICE uint32_t ValueZeros(int t, int group) const {
    return ValueScales(t, group) + kGroups * 2 * kPairPageTokens;
  }
  static KVANT_DEVICE constexpr int GroupOf(int step) { return step * kGroups / kSteps; }

  template <int kTiles>
  KVANT_DEVICE void Values(float (&acc)[kSteps][4], const uint32_t (&p)[kTiles][kGroups][2], Lane lane) const {
    constexpr int kFields = 16 / kFieldBits;
    constexpr uint32_t kMask = ((1U << kFieldBits) - 1U) * 0x10001U;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint32_t block = tiles + (t / 2) * block_bytes + 2 * key_tile_bytes + lane.id * 16;
      if constexpr (kHasLowPlane) LowPlane(acc, block, t, p[t]);
      const uint32_t values = block + kLowPlaneBytes;
      if constexpr (kSteps < kFields) {
        // Two tiles share the words: the second one's fields are shifted down onto the first one's places.
        const uint4 w = Load16(values);
        const uint32_t shift = t % 2 == 0 ? 0 : kSteps * kFieldBits;
        const uint4 from = make_uint4(w.x >> shift, w.y >> shift, w.z >> shift, w.w >> shift);
#pragma unroll
        for (int j = 0; j < kSteps; ++j) Field(acc[j], from, kMask << (j * kFieldBits), p[t][GroupOf(j)]);
      } else {
#pragma unroll
        for (int first = 0; first < kSteps; first += kFields) {
          const uint4 w = Load16(values + (t % 2 * kSteps + first) / kFields * 512);
          const uint4 x = make_uint4(w.x >> 6, w.y >> 6, w.z >> 6, w.w >> 6);
#pragma unroll
          for (int j = 0; j < kFields && first + j < kSteps; ++j) {
            const int bit = j * kFieldBits;
            Field(acc[first + j], bit + kFieldBits <= 10 ? w : x, kMask << FieldBit(bit), p[t][GroupOf(first + j)]);
          }
        }
      }
    }
  }

  /// The lowest bits of three: their places differ from those of the upper fields, so the probabilities are brought to
  /// half of the upper field's weight first.
  KVANT_DEVICE void LowPlane(float (&acc)[kSteps][4], uint32_t block, int t,
                             const uint32_t (&groups)[kGroups][2]) const {
    const int first = t % 2 * kSteps;  // field of step 0
    const uint4 w = Load16(block + first / 16 * 512);
    const uint4 x = make_uint4(w.x >> 6, w.y >> 6, w.z >> 6, w.w >> 6);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int field = (first + i) % 16;
      const bool shifted = field > 7;
      const int bit = shifted ? field - 6 : field;
      const uint32_t weight = PowerOfTwo(FieldBit(i % (16 / kFieldBits) * kFieldBits) - 1 - bit);
      const uint32_t(&p)[2] = groups[GroupOf(i)];
      const uint32_t scaled[2] = {Bits(__hmul2(AsHalf2(p[0]), AsHalf2(weight))),
                                  Bits(__hmul2(AsHalf2(p[1]), AsHalf2(weight)))};
      Field(acc[i], shifted ? x : w, 0x10001U << bit, scaled);
    }
  }

  static KVANT_DEVICE void Field(float (&acc)[4], const uint4& w, uint32_t mask, const uint32_t (&p)[2]) {
    Mma(acc, w.x & mask, w.y & mask, w.z & mask, w.w & mask, p[0], p[1]);
  }

  static KVANT_DEVICE constexpr int FieldBit(int bit) { return bit + kFieldBits <= 10 ? bit : bit - 6; }

  static KVANT_DEVICE constexpr float AccUnit(int step) {
    const float whole = kHasLowPlane ? 33554432.0F : 16777216.0F;  // an upper field counts twice: 2^25, else 2^24
    return whole / static_cast<float>(1 << FieldBit(step % (16 / kFieldBits) * kFieldBits));
  }
};

}  // namespace kvant::kernels::cuda
