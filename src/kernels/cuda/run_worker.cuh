#pragma once

#include "kernels/cuda/loader.cuh"

namespace kvant::kernels::cuda {

/// From true output units to the sums of a format, and back when its run ends.
template <class Tiles, int kHeadDim>
KVANT_DEVICE void EnterUnits(SoftmaxState<kHeadDim>& state) {
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    for (int j = 0; j < 4; ++j) state.acc[i][j] *= 1.0F / Tiles::AccUnit(i);
  }
}
template <class Tiles, int kHeadDim>
KVANT_DEVICE void LeaveUnits(SoftmaxState<kHeadDim>& state, Lane lane) {
  constexpr int kStepsAGroup = kHeadDim / 16 / Tiles::kValueGroups;
#pragma unroll
  for (int group = 0; group < Tiles::kValueGroups; ++group) {
    const uint32_t source = SumRow(group) * 4 + lane.quad;
    const float zero0 = Tiles::kZeroUnit * __shfl_sync(~0U, state.sums[0], source);
    const float zero1 = Tiles::kZeroUnit * __shfl_sync(~0U, state.sums[1], source);
#pragma unroll
    for (int i = group * kStepsAGroup; i < (group + 1) * kStepsAGroup; ++i) {
      for (int j = 0; j < 4; ++j) {
        const float zero = Tiles::kScalesValues ? (j % 2 == 0 ? zero0 : zero1) : 0.0F;
        state.acc[i][j] = fmaf(state.acc[i][j], Tiles::AccUnit(i), zero);
      }
    }
  }
  if (lane.row != 1) state.sums[0] = state.sums[1] = 0.0F;
}

/// The computing side of one run.
template <class Config, class Tiles, class LoaderType>
struct RunWorker {
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kUnitTiles = Tiles::kUnitTiles;

  const DecodeParams& params;
  uint32_t ring;  ///< offsets in shared memory
  uint32_t memory_at;
  uint32_t ones;
  Lane lane;

  KVANT_DEVICE typename LoaderType::Memory& Memory() const { return Shared<typename LoaderType::Memory>(memory_at); }
  KVANT_DEVICE const DecodeRun& ThisRun() const { return Memory().run; }

  KVANT_DEVICE void Run(const QueryOrder<kHeadDim>& order, SoftmaxState<kHeadDim>& state, LoaderType& loader,
                        int& primed, int& stage, uint32_t& parity) {
    const uint32_t tile_bytes = TileBytes<Tiles>(params, ThisRun());
    const QueryFragments<kHeadDim> query = Query(order);
    for (; primed < Config::kStages; ++primed) loader.Issue(primed);
    if constexpr (IsPair<Tiles>::value) {
      if constexpr (Tiles::kNeedsSteps) LoadSteps();
    }
    if (ThisRun().begins_item == 0) EnterUnits<Tiles>(state);
    uint32_t tile = ThisRun().first_tile;
    const uint32_t end = tile + ThisRun().num_tiles;
    const uint32_t whole_from = (ThisRun().first_visible + kTileTokens - 1) / kTileTokens;
    const uint32_t whole_to = ThisRun().num_tokens / kTileTokens;
    while (tile < end) {
      const uint32_t next = min((tile / kUnitTiles + 1) * kUnitTiles, end);
      const bool whole = next - tile == kUnitTiles && tile >= whole_from && next <= whole_to;
      loader.Wait(stage, parity);
      Unit(tile_bytes, state, query, ring + stage * params.stage_bytes, tile, next - tile, whole);
      loader.Issue(stage);
      if (++stage == Config::kStages) {
        stage = 0;
        parity ^= 1U;
      }
      tile = next;
    }
    LeaveUnits<Tiles>(state, lane);
  }

 private:
  KVANT_DEVICE QueryFragments<kHeadDim> Query(const QueryOrder<kHeadDim>& order) const {
    const DecodeRun& run = ThisRun();
    const DecodeBlock& block = params.blocks[blockIdx.x];
    const int set = run.item == __ldg(&block.item[0]) ? 0 : run.item == __ldg(&block.item[1]) ? 1 : -1;
    QueryFragments<kHeadDim> query;
    query.offset[0] = query.offset[1] = 0.0F;
    if (set >= 0) {
      FillFrom(query, Shared<typename Config::Rows>(Config::kRows).q[set][lane.row], order);
    } else {
      FillFrom(query, GlobalRow(params, run, kHeadDim, lane), order);
    }
    if constexpr (!IsPair<Tiles>::value) {
      if constexpr (!Tiles::kIsHalf) TotalQuery(query);
    }
    return query;
  }

  template <class RowType>
  KVANT_DEVICE void FillFrom(QueryFragments<kHeadDim>& query, const RowType& row,
                             const QueryOrder<kHeadDim>& order) const {
    const auto bits = [](auto x) {
      if constexpr (std::is_same_v<decltype(x), float>) {
        return HalfBits(x);
      } else {
        return static_cast<uint32_t>(__half_as_ushort(x));
      }
    };
    if constexpr (IsPair<Tiles>::value) {
      FillQuery(query, [&](int step, int element) { return bits(row[order.Channel(step, element)]); });
    } else {
      const DecodeRun& run = ThisRun();
      if constexpr (!Tiles::kIsHalf) {
        if (params.equalization != nullptr && run.map != DecodeRun::kNone) {
          const size_t map = static_cast<size_t>(run.map) * params.num_kv_heads + run.kv_head;
          FillEqualized(query, row, params.equalization + map * 2 * kHeadDim, lane);
          return;
        }
      }
      FillQuery(query, [&](int step, int element) { return bits(row[PlainChannel(step, element, lane)]); });
    }
  }

  KVANT_DEVICE void LoadSteps() {
    const auto* src = reinterpret_cast<const uint4*>(MapOf(params, ThisRun()).steps);
    __syncwarp();
    if (lane.id < Config::kSteps * 2) reinterpret_cast<uint4*>(Memory().steps)[lane.id] = __ldg(src + lane.id);
    __syncwarp();
  }

  KVANT_DEVICE Tiles TilesAt(uint32_t tile_bytes, uint32_t data, uint32_t tail, uint32_t tile) const {
    if constexpr (IsPair<Tiles>::value) {
      return {data,
              tail,
              memory_at + static_cast<uint32_t>(offsetof(typename LoaderType::Memory, steps)),
              2 * tile_bytes,
              tile_bytes - Tiles::kValueBlockBytes / 2,
              tile * kTileTokens % kPairPageTokens,
              {0.0F, 0.0F}};
    } else {
      return {data};
    }
  }

  // One load: `whole` and wholly visible, or piece by piece with a mask.
  KVANT_DEVICE void Unit(uint32_t tile_bytes, SoftmaxState<kHeadDim>& state, const QueryFragments<kHeadDim>& query,
                         uint32_t data, uint32_t tile, uint32_t count, bool whole) {
    const uint32_t tail = data + kUnitTiles * tile_bytes;
    Tiles tiles = TilesAt(tile_bytes, data, tail, tile);
    float offset[2] = {query.offset[0], query.offset[1]};
    if constexpr (IsPair<Tiles>::value) {
      tiles.LoadPage(query, lane);
      offset[0] += tiles.zero[0];
      offset[1] += tiles.zero[1];
    }
    if (whole) {
      AttendTiles<Config::kSoftCap, false, kUnitTiles>(tiles, state, query, offset, {0, 0}, params.soft_cap, ones,
                                                       lane);
      return;
    }
#pragma unroll 1
    for (uint32_t at = 0; at < count; at += Tiles::kMaskedTiles) {
      const int first = static_cast<int>((tile + at) * kTileTokens);
      const VisibleTokens visible{static_cast<int>(ThisRun().first_visible) - first,
                                  static_cast<int>(ThisRun().num_tokens) - first};
      if (visible.begin >= Tiles::kMaskedTiles * static_cast<int>(kTileTokens) || visible.end <= 0) continue;
      const Tiles piece = TilesAt(tile_bytes, data + at * tile_bytes, tail, tile + at);
      AttendTiles<Config::kSoftCap, true, Tiles::kMaskedTiles>(piece, state, query, offset, visible, params.soft_cap,
                                                               ones, lane);
    }
  }
};

}  // namespace kvant::kernels::cuda
