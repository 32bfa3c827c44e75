#pragma once

#include "kernels/cuda/attend_tiles.cuh"
#include "kernels/cuda/merge.cuh"

namespace kvant::kernels::cuda {

/// What a kernel is compiled for. Stages are as large as the launch says: maps differ.
template <int kHeadDim_, int kWarps_, bool kSoftCap_>
struct DecodeConfig {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = kWarps_;
  static constexpr bool kSoftCap = kSoftCap_;
  static constexpr int kStages = 2;
  static constexpr int kSteps = kHeadDim / 16;
  // Shared memory: step tables, ones, barriers, rings. A ring also holds a partial at the end.
  static constexpr uint32_t kOnes = kWarps * kSteps * sizeof(PairDeviceMap::Step);
  static constexpr uint32_t kBarriers = kOnes + 64;
  static constexpr uint32_t kRings = (kBarriers + kWarps * kStages * 8 + 127) / 128 * 128;
  static constexpr uint32_t kLeastStage = (8 * (kHeadDim + 4) * 4 + 64 + kStages - 1) / kStages;
};

template <class Tiles>
struct IsPair : std::false_type {};
template <int kHeadDim, int kValueBits, int kUnit, class Kind>
struct IsPair<PairTiles<kHeadDim, kValueBits, kUnit, Kind>> : std::true_type {};

template <class Tiles>
constexpr DecodeFormat FormatOf() {
  if constexpr (IsPair<Tiles>::value) {
    return DecodeFormat::kPair;
  } else {
    return static_cast<DecodeFormat>(Tiles::kCodec);
  }
}

/// Calls visit with a null pointer of the tile type of the format.
template <class... Tiles, class Visit>
KVANT_DEVICE void ForFormat(DecodeFormat format, Visit visit) {
  ((format == FormatOf<Tiles>() ? (visit(static_cast<Tiles*>(nullptr)), 0) : 0), ...);
}

KVANT_DEVICE DecodeRun LoadRun(const std::byte* plan, uint32_t index) {
  DecodeRun run;
  const auto* src = reinterpret_cast<const uint4*>(plan + sizeof(DecodePlanHeader)) + index * 3;
  auto* dst = reinterpret_cast<uint4*>(&run);
#pragma unroll
  for (int i = 0; i < 3; ++i) dst[i] = __ldg(src + i);
  return run;
}

/// How the tiles of a run lie in their pages.
struct RunShape {
  const std::byte* base;  ///< record of this KV head in page 0
  uint64_t page_bytes;
  uint32_t log2_tiles;
  uint32_t tile_bytes;
  uint32_t tail;        ///< pair pages: offset of the scales, else 0
  uint32_t unit_tiles;  ///< of one load
};

template <class Tiles>
KVANT_DEVICE RunShape ShapeOfRun(const DecodeParams& params, const DecodeRun& run) {
  const PoolParams& pool = params.pools[static_cast<int>(FormatOf<Tiles>())];
  RunShape shape{pool.base + static_cast<uint64_t>(run.kv_head) * pool.record_bytes, pool.page_bytes, pool.log2_tiles, 0, 0,
                 Tiles::kUnitTiles};
  if constexpr (IsPair<Tiles>::value) {
    const PairDeviceMap& map = params.maps[run.map * params.num_kv_heads + run.kv_head];
    shape.tile_bytes = __ldg(&map.block_bytes) / 2;
    shape.tail = __ldg(&map.tail);
  } else {
    shape.tile_bytes = Tiles::kTileBytes;
  }
  return shape;
}

/// The loading side of a warp's ring: walks the warp's runs some units ahead of the computing side.
template <class Config, class... Tiles>
class Loader {
 public:
  KVANT_DEVICE Loader(const DecodeParams& params, uint32_t ring, uint32_t barriers, uint32_t first_run, Lane lane)
      : params_(params), ring_(ring), barriers_(barriers), lane_(lane) {
#if __CUDA_ARCH__ >= 900
    if (lane.id == 0) {
      for (int i = 0; i < Config::kStages; ++i) BarrierInit(barriers + 8 * i);
      BarrierInitFence();
    }
    policy_ = EvictFirst();
    __syncwarp();
#endif
    Enter(first_run);
  }

  /// Start the next load into `stage`; nothing when the runs are at their end.
  KVANT_DEVICE void Issue(int stage) {
    if (left_ != 0) {
      const uint32_t in_page = tile_ & ((1U << shape_.log2_tiles) - 1U);
      const uint32_t count = min(shape_.unit_tiles - tile_ % shape_.unit_tiles, left_);
      const std::byte* record = shape_.base + page_ * shape_.page_bytes;
      Copy(stage, record + in_page * shape_.tile_bytes, count * shape_.tile_bytes, record);
      tile_ += count;
      left_ -= count;
      if (left_ == 0) {
        if (next_ != DecodeRun::kNone) Enter(next_);
      } else {
        LoadPageId();
      }
    }
#if __CUDA_ARCH__ < 900
    CommitCopies();
#endif
  }

  KVANT_DEVICE void Wait(int stage, uint32_t parity) const {
#if __CUDA_ARCH__ >= 900
    BarrierWait(barriers_ + 8 * stage, parity);
#else
    WaitForCopies<Config::kStages - 1>();
    __syncwarp();
#endif
  }

 private:
  KVANT_DEVICE void Enter(uint32_t index) {
    const DecodeRun run = LoadRun(params_.plan, index);
    tile_ = run.first_tile;
    left_ = run.num_tiles;
    next_ = run.next;
    table_ = run.page_table;
    if (left_ == 0) return;
    ForFormat<Tiles...>(run.format, [&](auto* tiles) {
      shape_ = ShapeOfRun<std::remove_pointer_t<decltype(tiles)>>(params_, run);
    });
    LoadPageId();
  }

  // Asked for one unit before it is needed.
  KVANT_DEVICE void LoadPageId() { page_ = __ldg(params_.page_table + table_ + (tile_ >> shape_.log2_tiles)); }

  // `bytes` of tiles, then the tail of a pair record right behind a whole unit's place in the stage.
  KVANT_DEVICE void Copy(int stage, const std::byte* src, uint32_t bytes, const std::byte* record) {
    const uint32_t dst = ring_ + stage * params_.stage_bytes;
    const uint32_t tail_at = shape_.unit_tiles * shape_.tile_bytes;
#if __CUDA_ARCH__ >= 900
    if (lane_.id == 0) {
      const uint32_t barrier = barriers_ + 8 * stage;
      BarrierExpect(barrier, bytes + TailBytes());
      BulkCopy(dst, src, bytes, barrier, policy_);
      if (shape_.tail != 0) BulkCopy(dst + tail_at, record + shape_.tail, TailBytes(), barrier, policy_);
    }
#else
    WarpCopy(dst, src, bytes, lane_.id);
    if (shape_.tail != 0) WarpCopy(dst + tail_at, record + shape_.tail, TailBytes(), lane_.id);
#endif
  }

  KVANT_DEVICE uint32_t TailBytes() const {
    return shape_.tail != 0 ? 4 * Config::kHeadDim + 4 * kPairPageTokens : 0U;
  }

  const DecodeParams& params_;
  uint32_t ring_;
  uint32_t barriers_;
  Lane lane_;
  uint64_t policy_ = 0;
  RunShape shape_{};
  uint32_t tile_ = 0;
  uint32_t left_ = 0;
  uint32_t next_ = DecodeRun::kNone;
  uint32_t table_ = 0;
  uint64_t page_ = 0;
};

/// Channel of query element (step, quad, element): element 0, 1 at 2·quad, 2, 3 eight further.
template <class Tiles>
KVANT_DEVICE uint32_t ChannelOf(const PairDeviceMap* map, int step, uint32_t quad, int element) {
  const uint32_t position = 16 * step + 2 * quad + element % 2 + (element / 2) * 8;
  return IsPair<Tiles>::value ? map->order[position] : position;
}

/// Load and round the queries of a run, permuted and scaled as its keys are stored.
template <class Tiles, int kHeadDim>
KVANT_DEVICE QueryFragments<kHeadDim> LoadQuery(const DecodeParams& params, const DecodeRun& run, Lane lane) {
  QueryFragments<kHeadDim> query;
  const bool exists = lane.row < run.num_q_heads;
  const float* row =
      params.q + (static_cast<size_t>(run.sequence) * params.num_q_heads + run.first_q_head + lane.row) * kHeadDim;
  const PairDeviceMap* map =
      IsPair<Tiles>::value ? params.maps + run.map * params.num_kv_heads + run.kv_head : nullptr;
  const uint16_t* equalization = nullptr;
  if (!IsPair<Tiles>::value && params.equalization != nullptr && run.map != DecodeRun::kNone) {
    equalization = params.equalization + (static_cast<size_t>(run.map) * params.num_kv_heads + run.kv_head) * 2 * kHeadDim;
  }
  float shared = 0.0F;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t channel = ChannelOf<Tiles>(map, i, lane.quad, j);
      x[j] = exists ? __ldg(row + channel) * params.q_scale : 0.0F;
      if (equalization != nullptr) {
        shared = fmaf(x[j], __half2float(__ushort_as_half(__ldg(equalization + channel))), shared);
        x[j] *= __half2float(__ushort_as_half(__ldg(equalization + kHeadDim + channel)));
      }
    }
    query.q[i][0] = PackHalf2(x[0], x[1]);
    query.q[i][1] = PackHalf2(x[2], x[3]);
  }
  shared += __shfl_xor_sync(~0U, shared, 1);
  shared += __shfl_xor_sync(~0U, shared, 2);
  query.offset[0] = __shfl_sync(~0U, shared, 8 * lane.quad);
  query.offset[1] = __shfl_sync(~0U, shared, 8 * lane.quad + 4);
  float total[4] = {};
  constexpr uint32_t kOne = 0x3C003C00U;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) Mma(total, kOne, kOne, kOne, kOne, query.q[i][0], query.q[i][1]);
  query.total[0] = total[0];
  query.total[1] = total[1];
  return query;
}

/// From true output units to the sums of a format, and back when its run ends.
template <class Tiles, int kHeadDim>
KVANT_DEVICE void EnterUnits(const DecodeParams& params, SoftmaxState<kHeadDim>& state) {
  if (state.fresh) return;
  if ((params.rotated >> static_cast<int>(FormatOf<Tiles>()) & 1U) != 0) state.Hadamard();
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    for (int j = 0; j < 4; ++j) state.acc[i][j] *= 1.0F / Tiles::AccUnit(i);
  }
}
template <class Tiles, int kHeadDim>
KVANT_DEVICE void LeaveUnits(const DecodeParams& params, SoftmaxState<kHeadDim>& state, Lane lane) {
  const float zero0 = Tiles::kZeroUnit * __shfl_sync(~0U, state.sums[0], lane.quad);
  const float zero1 = Tiles::kZeroUnit * __shfl_sync(~0U, state.sums[1], lane.quad);
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    for (int j = 0; j < 4; ++j) {
      const float zero = Tiles::kScalesValues ? (j % 2 == 0 ? zero0 : zero1) : 0.0F;
      state.acc[i][j] = fmaf(state.acc[i][j], Tiles::AccUnit(i), zero);
    }
  }
  if (lane.row == 0) state.sums[0] = state.sums[1] = 0.0F;
  if ((params.rotated >> static_cast<int>(FormatOf<Tiles>()) & 1U) != 0) state.Hadamard();
}

/// The computing side of one run.
template <class Config, class Tiles, class LoaderType>
struct RunWorker {
  static constexpr int kHeadDim = Config::kHeadDim;

  const DecodeParams& params;
  const std::byte* ring;
  PairDeviceMap::Step* steps;  ///< this warp's table
  const std::byte* ones;
  Lane lane;

  KVANT_DEVICE void Run(const DecodeRun& run, SoftmaxState<kHeadDim>& state, LoaderType& loader, int& stage,
                        uint32_t& parity) {
    const QueryFragments<kHeadDim> query = LoadQuery<Tiles, kHeadDim>(params, run, lane);
    const RunShape shape = ShapeOfRun<Tiles>(params, run);
    if constexpr (IsPair<Tiles>::value) LoadSteps(run);
    EnterUnits<Tiles>(params, state);
    uint32_t tile = run.first_tile;
    uint32_t left = run.num_tiles;
    while (left != 0) {
      const uint32_t count = min(static_cast<uint32_t>(Tiles::kUnitTiles) - tile % Tiles::kUnitTiles, left);
      loader.Wait(stage, parity);
      Unit(run, shape, state, query, ring + stage * params.stage_bytes, tile, count);
      __syncwarp();
      loader.Issue(stage);
      if (++stage == Config::kStages) {
        stage = 0;
        parity ^= 1U;
      }
      tile += count;
      left -= count;
    }
    LeaveUnits<Tiles>(params, state, lane);
  }

 private:
  KVANT_DEVICE void LoadSteps(const DecodeRun& run) {
    const PairDeviceMap& map = params.maps[run.map * params.num_kv_heads + run.kv_head];
    const auto* src = reinterpret_cast<const uint4*>(map.steps);
    __syncwarp();
    if (lane.id < Config::kSteps * 2) reinterpret_cast<uint4*>(steps)[lane.id] = __ldg(src + lane.id);
    __syncwarp();
  }

  KVANT_DEVICE Tiles TilesAt(const RunShape& shape, const std::byte* data, const std::byte* tail, uint32_t tile) const {
    if constexpr (IsPair<Tiles>::value) {
      const uint32_t value_bytes = Tiles::kValueBlockBytes;
      return {data, tail, steps, 2 * shape.tile_bytes, shape.tile_bytes - value_bytes / 2,
              tile * kTileTokens % kPairPageTokens, {0.0F, 0.0F}};
    } else {
      return {data};
    }
  }

  // One load: whole and wholly visible, or piece by piece with a mask.
  KVANT_DEVICE void Unit(const DecodeRun& run, const RunShape& shape, SoftmaxState<kHeadDim>& state,
                         const QueryFragments<kHeadDim>& query, const std::byte* data, uint32_t tile, uint32_t count) {
    const std::byte* tail = data + Tiles::kUnitTiles * shape.tile_bytes;
    Tiles tiles = TilesAt(shape, data, tail, tile);
    float offset[2] = {query.offset[0], query.offset[1]};
    if constexpr (IsPair<Tiles>::value) {
      tiles.LoadPage(query, lane);
      offset[0] += tiles.zero[0];
      offset[1] += tiles.zero[1];
    }
    const uint32_t first_token = tile * kTileTokens;
    const bool whole = count == Tiles::kUnitTiles && first_token >= run.first_visible &&
                       first_token + Tiles::kUnitTiles * kTileTokens <= run.num_tokens;
    if (whole) {
      AttendTiles<Config::kSoftCap, false, Tiles::kUnitTiles>(tiles, state, query, offset, {0, 0}, params.soft_cap, ones,
                                                              lane);
      return;
    }
    for (uint32_t at = 0; at < count; at += Tiles::kMaskedTiles) {
      const int first = static_cast<int>((tile + at) * kTileTokens);
      const VisibleTokens visible{static_cast<int>(run.first_visible) - first, static_cast<int>(run.num_tokens) - first};
      if (visible.begin >= Tiles::kMaskedTiles * static_cast<int>(kTileTokens) || visible.end <= 0) continue;
      Tiles piece = TilesAt(shape, data + at * shape.tile_bytes, tail, tile + at);
      AttendTiles<Config::kSoftCap, true, Tiles::kMaskedTiles>(piece, state, query, offset, visible, params.soft_cap,
                                                               ones, lane);
    }
  }
};

template <class Config, class... Tiles>
__global__ void __launch_bounds__(Config::kWarps * 32, 1) DecodeKernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(128) std::byte shared[];
  const uint32_t warp = threadIdx.x / 32;
  const Lane lane = ThisLane();
  const uint32_t ring_bytes = Config::kStages * params.stage_bytes;
  std::byte* ring = shared + Config::kRings + warp * ring_bytes;
  auto* steps = reinterpret_cast<PairDeviceMap::Step*>(shared) + warp * Config::kSteps;
  if (threadIdx.x < 16) reinterpret_cast<uint32_t*>(shared + Config::kOnes)[threadIdx.x] = 0x3C003C00U;
  using LoaderType = Loader<Config, Tiles...>;
  uint32_t index = blockIdx.x * Config::kWarps + warp;
  LoaderType loader(params, SharedAddress(ring),
                    SharedAddress(shared + Config::kBarriers) + warp * Config::kStages * 8, index, lane);
  for (int i = 0; i < Config::kStages; ++i) loader.Issue(i);
  __syncthreads();  // the ones

  SoftmaxState<Config::kHeadDim> state;
  int stage = 0;
  uint32_t parity = 0;
  while (index != DecodeRun::kNone) {
    const DecodeRun run = LoadRun(params.plan, index);
    if (run.num_tiles == 0) break;
    if (run.begins_item != 0) state.Reset();
    ForFormat<Tiles...>(run.format, [&](auto* tiles) {
      using T = std::remove_pointer_t<decltype(tiles)>;
      RunWorker<Config, T, LoaderType>{params, ring, steps, shared + Config::kOnes, lane}.Run(run, state, loader, stage,
                                                                                             parity);
    });
    FinishRun<Config::kHeadDim>(params, run, state, ring, lane);
    index = run.next;
  }
  MergeGroups<Config::kHeadDim, Config::kWarps>(params, shared + Config::kRings, ring_bytes);
}

}  // namespace kvant::kernels::cuda
