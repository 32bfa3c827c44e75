#pragma once

#include "kernels/cuda/pair_tile.cuh"
#include "kernels/cuda/soft_cap.cuh"
#include "kernels/cuda/token_tile.cuh"

namespace kvant::kernels::cuda {

/// Which tokens of the tiles at hand count: [begin, end), counted from the first token of the first tile.
struct VisibleTokens {
  int begin;
  int end;
};

/// What a block of tiles may add to Σ p before the reference is looked for again. Probabilities are fp16 numbers
/// relative to a reference that lags behind the largest logit; up to this sum none of them, nor its product with a
/// value scale below 255, leaves fp16.
inline constexpr float kMostBeforeRaise = 256.0F;

/// Ones as long as the zeros of the most tiles of a load, so that both are read alike.
inline constexpr uint32_t kOnesBytes = 8 * 2 * kTileTokens;

/// Attend to kTiles tiles: scores, softmax against the running reference, values.
///
/// The reference is taken from the first tiles and then only raised when their Σ p shows that it is far behind, so the
/// usual case has no maximum, no exchange between lanes and no rescaling between scores and values. Σ p and the sum of
/// value zeros come from one tensor-core row each.
///
/// `ones` is where in shared memory there are kOnesBytes of fp16 ones; tiles stay loaded until return.
template <bool kSoftCap, bool kMasked, int kTiles, class Tiles, int kHeadDim>
KVANT_DEVICE void AttendTiles(const Tiles& tiles, SoftmaxState<kHeadDim>& state, const QueryFragments<kHeadDim>& query,
                              const float (&offset)[2], VisibleTokens visible, float soft_cap, uint32_t ones,
                              Lane lane) {
  bool look_for_reference = state.Fresh();
  // Row 1 is ones; the rows of SumRow are what is added to every channel of a group; rows 8…15 are not looked at.
  const auto extra_row = [&](int t) {
    uint32_t extra = ones;
#pragma unroll
    for (int group = 0; Tiles::kScalesValues && group < Tiles::kValueGroups; ++group) {
      if (lane.row == SumRow(group)) extra = tiles.ValueZeros(t, group);
    }
    return extra + 4 * lane.quad;
  };
  const uint32_t first_extra = extra_row(0);
  while (true) {
    __syncwarp();  // keeps the compiler from moving the loads of all codes out of this loop, into registers it lacks
    float s[kTiles][4];
    tiles.template Scores<kTiles>(s, query, lane);
    // The logit minus `shift`, which costs nothing where it can be taken off the addend.
    const auto logit = [&](int t, int j, const float(&shift)[2]) {
      const uint32_t token = lane.row + (j < 2 ? 0 : 8);
      float addend = kSoftCap ? offset[j % 2] : offset[j % 2] - shift[j % 2];
      if constexpr (Tiles::kHasKeyZero) addend = fmaf(tiles.KeyZero(t, token), query.total[j % 2], addend);
      const float x = fmaf(s[t][j], tiles.Factor(t, token), addend);
      return kSoftCap ? CapLogit(x, soft_cap) - shift[j % 2] : x;
    };
    const auto is_visible = [&](int t, int j) {
      const int token = 16 * t + static_cast<int>(lane.row) + (j < 2 ? 0 : 8);
      return !kMasked || (token >= visible.begin && token < visible.end);
    };
    if (look_for_reference) {
      constexpr float kNoShift[2] = {0.0F, 0.0F};
      float most[2] = {state.reference[0], state.reference[1]};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (is_visible(t, j)) most[j % 2] = fmaxf(most[j % 2], logit(t, j, kNoShift));
        }
      }
      state.Raise(ReduceMaxOverRows(most[0]), ReduceMaxOverRows(most[1]));
    }
    float sums[2][4] = {};
    uint32_t p[kTiles][Tiles::kValueGroups][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float e[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        e[j] = is_visible(t, j) ? Exp2(logit(t, j, state.reference)) : 0.0F;
      }
      const uint32_t p0 = Transpose8x8(PackHalf2(e[0], e[1]));
      const uint32_t p1 = Transpose8x8(PackHalf2(e[2], e[3]));
      const uint32_t extra = Tiles::kZerosFollow ? first_extra + t * 2 * kTileTokens : extra_row(t);
      const uint32_t z0 = Load4(extra);
      const uint32_t z1 = Load4(extra + 16);
      Mma(sums[t % 2], z0, z0, z1, z1, p0, p1);
      if constexpr (Tiles::kScalesValues) {
#pragma unroll
        for (int group = 0; group < Tiles::kValueGroups; ++group) {
          const uint32_t scales = tiles.ValueScales(t, group) + 4 * lane.quad;
          p[t][group][0] = Bits(__hmul2(AsHalf2(p0), AsHalf2(Load4(scales))));
          p[t][group][1] = Bits(__hmul2(AsHalf2(p1), AsHalf2(Load4(scales + 16))));
        }
      } else {
        p[t][0][0] = p0;
        p[t][0][1] = p1;
      }
    }
    const float sum0 = sums[0][0] + sums[1][0];
    const float sum1 = sums[0][1] + sums[1][1];
    if (!look_for_reference) {
      const bool within = sum0 <= kMostBeforeRaise && sum1 <= kMostBeforeRaise;
      if (__any_sync(~0U, lane.row == 1 && !within)) {
        look_for_reference = true;
        continue;
      }
    }
    state.sums[0] += sum0;
    state.sums[1] += sum1;
    tiles.template Values<kTiles>(state.acc, p, lane);
    return;
  }
}

}  // namespace kvant::kernels::cuda
