#pragma once

#include "kernels/cuda/attend_tiles.cuh"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/query.cuh"

namespace kvant::kernels::cuda {

/// What a kernel is compiled for. Stages are as large as the launch says: maps differ.
template <int kHeadDim_, int kWarps_, bool kSoftCap_, class QueryRow>
struct DecodeConfig {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = kWarps_;
  static constexpr bool kSoftCap = kSoftCap_;
  static constexpr int kStages = 2;
  static constexpr int kSteps = kHeadDim / 16;
  using Rows = BlockRows<kHeadDim, kWarps * 32, QueryRow>;
  // Shared memory: the warps' own, ones, block end, query rows, barriers, rings. A ring also holds a partial at the
  // end.
  static constexpr uint32_t kOnes = kWarps * (112 + kSteps * sizeof(PairDeviceMap::Step));
  static constexpr uint32_t kBlockEnd = kOnes + 64;
  static constexpr uint32_t kRows = kBlockEnd + sizeof(BlockEnd<kWarps>);
  static constexpr uint32_t kBarriers = kRows + sizeof(Rows);
  static constexpr uint32_t kRings = (kBarriers + kWarps * kStages * 8 + 127) / 128 * 128;
  static constexpr uint32_t kLeastStage = (8 * (kHeadDim + 4) * 4 + 64 + kStages - 1) / kStages;
};

template <class Tiles>
struct IsPair : std::false_type {};
template <int kHeadDim, int kValueBits, int kUnit, PairSteps kKind, int kGroups>
struct IsPair<PairTiles<kHeadDim, kValueBits, kUnit, kKind, kGroups>> : std::true_type {};

/// Bytes behind the blocks of a pair record: scales and zeros of keys and values.
template <class... Tiles>
constexpr uint32_t PairTailBytes(uint32_t head_dim) {
  return 4 * head_dim + 4 * kPairPageTokens * (Tiles::kValueGroups * ...);
}

template <class Tiles>
constexpr DecodeFormat FormatOf() {
  if constexpr (IsPair<Tiles>::value) {
    return DecodeFormat::kPair;
  } else if constexpr (Tiles::kIsBf16) {
    return DecodeFormat::kBf16;
  } else {
    return static_cast<DecodeFormat>(Tiles::kCodec);
  }
}

/// Calls visit with a null pointer of the tile type of the format.
template <class... Tiles, class Visit>
KVANT_DEVICE void ForFormat(DecodeFormat format, Visit visit) {
  ((format == FormatOf<Tiles>() ? (visit(static_cast<Tiles*>(nullptr)), 0) : 0), ...);
}

/// What a warp keeps in shared memory because registers are what the inner loop is short of.
template <int kSteps>
struct alignas(16) WarpMemory {
  DecodeRun run;  ///< being computed
  /// The next load: how the tiles of the run it belongs to lie in their pages.
  struct Load {
    const std::byte* base;  ///< record of this KV head in page 0
    uint64_t page_bytes;
    const uint32_t* table;
    uint32_t tile;
    uint32_t left;
    uint32_t next_run;
    uint32_t log2_tiles;
    uint32_t tile_bytes;
    uint32_t tail;        ///< pair pages: offset of the scales in the record, else 0
    uint32_t unit_tiles;  ///< a power of two
    uint32_t unused;
  } load;
  alignas(16) PairDeviceMap::Step steps[kSteps];  ///< the table of the run's map
};
static_assert(sizeof(WarpMemory<8>) == 112 + 8 * sizeof(PairDeviceMap::Step));

KVANT_DEVICE const DecodeRun& RunOfPlan(const DecodeParams& params, uint32_t index) { return params.runs[index]; }
KVANT_DEVICE const PairDeviceMap& MapOf(const DecodeParams& params, const DecodeRun& run) {
  return params.maps[run.map * params.num_kv_heads + run.kv_head];
}

/// Bytes of a tile where they do not depend on the map, else 0.
template <class Tiles>
constexpr uint32_t FixedTileBytes() {
  if constexpr (!IsPair<Tiles>::value) {
    return Tiles::kTileBytes;
  } else {
    return Tiles::kFixedTileBytes;
  }
}

template <class Tiles>
KVANT_DEVICE uint32_t TileBytes(const DecodeParams& params, const DecodeRun& run) {
  if constexpr (FixedTileBytes<Tiles>() != 0) {
    return FixedTileBytes<Tiles>();
  } else {
    return __ldg(&MapOf(params, run).block_bytes) / 2;
  }
}

/// The loading side of a warp's ring: walks the warp's runs some units ahead of the computing side.
template <class Config, class... Tiles>
class Loader {
 public:
  using Memory = WarpMemory<Config::kSteps>;

  KVANT_DEVICE Loader(const DecodeParams& params, uint32_t memory, uint32_t ring, uint32_t barriers, Lane lane)
      : params_(params), memory_(memory), ring_(ring), barriers_(barriers), lane_(lane) {
#if __CUDA_ARCH__ >= 900
    if (lane.id == 0) {
      for (int i = 0; i < Config::kStages; ++i) BarrierInit(barriers + 8 * i);
      BarrierInitFence();
    }
#endif
    if (lane.id == 0) Enter(Shared<Memory>(memory).run);
    __syncwarp();
  }

  /// Start the next load into `stage`; nothing when the runs are at their end. The stage must have been read.
  KVANT_DEVICE void Issue(int stage) {
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    if (lane_.id == 0 && Load().left != 0) {
      const Piece piece = Next();
      const uint32_t dst = ring_ + stage * params_.stage_bytes;
      const uint32_t barrier = barriers_ + 8 * stage;
      const uint64_t policy = EvictFirst();
      BarrierExpect(barrier, piece.bytes + TailBytes());
      BulkCopy(dst, piece.src, piece.bytes, barrier, policy);
      if (Load().tail != 0) BulkCopy(dst + TailPlace(), piece.record + Load().tail, TailBytes(), barrier, policy);
      Advance(piece);
    }
#else
    if (Load().left != 0) {
      const Piece piece = Next();
      const uint32_t dst = ring_ + stage * params_.stage_bytes;
      WarpCopy(dst, piece.src, piece.bytes, lane_.id);
      if (Load().tail != 0) WarpCopy(dst + TailPlace(), piece.record + Load().tail, TailBytes(), lane_.id);
      __syncwarp();
      if (lane_.id == 0) Advance(piece);
    }
    CommitCopies();
    __syncwarp();
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
  KVANT_DEVICE typename Memory::Load& Load() const { return Shared<Memory>(memory_).load; }

  struct Piece {
    const std::byte* record;
    const std::byte* src;
    uint32_t bytes;
    uint32_t count;
  };

  KVANT_DEVICE Piece Next() const {
#if __CUDA_ARCH__ >= 900
    const uint32_t page = page_;
#else
    const uint32_t page = __ldg(Load().table + (Load().tile >> Load().log2_tiles));
#endif
    const uint32_t tile = Load().tile;
    const uint32_t in_page = tile & ((1U << Load().log2_tiles) - 1U);
    const uint32_t count = min(Load().unit_tiles - (tile & (Load().unit_tiles - 1U)), Load().left);
    const std::byte* record = Load().base + page * Load().page_bytes;
    return {record, record + in_page * Load().tile_bytes, count * Load().tile_bytes, count};
  }

  KVANT_DEVICE void Advance(const Piece& piece) {
    Load().tile += piece.count;
    Load().left -= piece.count;
    if (Load().left != 0) {
      LoadPageId();
    } else if (Load().next_run != DecodeRun::kNone) {
      Enter(RunOfPlan(params_, Load().next_run));
    }
  }

  KVANT_DEVICE void Enter(const DecodeRun& run) {
    Load().tile = run.first_tile;
    Load().left = run.num_tiles;
    Load().next_run = run.next;
    if (run.num_tiles == 0) return;
    Load().table = params_.page_table + run.page_table;
    const DecodeFormat format = run.format;
    const PoolParams& pool = params_.pools[static_cast<int>(format)];
    Load().base = pool.base + static_cast<uint64_t>(run.kv_head) * pool.record_bytes;
    Load().page_bytes = pool.page_bytes;
    Load().log2_tiles = pool.log2_tiles;
    ForFormat<Tiles...>(format, [&](auto* tiles) {
      using T = std::remove_pointer_t<decltype(tiles)>;
      Load().tile_bytes = TileBytes<T>(params_, run);
      Load().unit_tiles = T::kUnitTiles;
      Load().tail = 0;
      if constexpr (IsPair<T>::value) Load().tail = Load().tile_bytes * (kPairPageTokens / kTileTokens);
    });
    LoadPageId();
  }

  // Asked for one unit before it is needed.
  KVANT_DEVICE void LoadPageId() {
#if __CUDA_ARCH__ >= 900
    page_ = __ldg(Load().table + (Load().tile >> Load().log2_tiles));
#endif
  }

  // The tail of a pair record stands behind a whole unit's place in the stage.
  KVANT_DEVICE uint32_t TailPlace() const { return Load().unit_tiles * Load().tile_bytes; }
  KVANT_DEVICE uint32_t TailBytes() const { return Load().tail != 0 ? PairTailBytes<Tiles...>(Config::kHeadDim) : 0U; }

  const DecodeParams& params_;
  uint32_t memory_;  // offset in shared memory
  uint32_t ring_;    // shared addresses, as the copies want them
  uint32_t barriers_;
  Lane lane_;
  uint32_t page_ = 0;  // of the next load; lane 0
};

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
    while (tile < end) {
      const uint32_t next = min((tile / kUnitTiles + 1) * kUnitTiles, end);
      loader.Wait(stage, parity);
      Unit(tile_bytes, state, query, ring + stage * params.stage_bytes, tile, next - tile);
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

  // One load: whole and wholly visible, or piece by piece with a mask.
  KVANT_DEVICE void Unit(uint32_t tile_bytes, SoftmaxState<kHeadDim>& state, const QueryFragments<kHeadDim>& query,
                         uint32_t data, uint32_t tile, uint32_t count) {
    const uint32_t tail = data + kUnitTiles * tile_bytes;
    Tiles tiles = TilesAt(tile_bytes, data, tail, tile);
    float offset[2] = {query.offset[0], query.offset[1]};
    if constexpr (IsPair<Tiles>::value) {
      tiles.LoadPage(query, lane);
      offset[0] += tiles.zero[0];
      offset[1] += tiles.zero[1];
    }
    const uint32_t first_token = tile * kTileTokens;
    const bool whole = count == kUnitTiles && first_token >= ThisRun().first_visible &&
                       first_token + kUnitTiles * kTileTokens <= ThisRun().num_tokens;
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

template <class Config, class... Tiles>
__global__ void __launch_bounds__(Config::kWarps * 32, 1) DecodeKernel(const __grid_constant__ DecodeParams params) {
  using LoaderType = Loader<Config, Tiles...>;
  const uint32_t warp = threadIdx.x / 32;
  const Lane lane = ThisLane();
  const uint32_t ring_bytes = Config::kStages * params.stage_bytes;
  const uint32_t ring = Config::kRings + warp * ring_bytes;
  const uint32_t memory = warp * sizeof(typename LoaderType::Memory);
  uint32_t index = blockIdx.x * Config::kWarps + warp;
  DecodeRun& run = Shared<typename LoaderType::Memory>(memory).run;
  const auto load_run = [&] {
    __syncwarp();
    if (lane.id < sizeof(DecodeRun) / 16) {
      reinterpret_cast<uint4*>(&run)[lane.id] = __ldg(reinterpret_cast<const uint4*>(params.runs + index) + lane.id);
    }
    __syncwarp();
  };
  load_run();
  LoaderType loader(params, memory, SharedAddress(g_shared + ring),
                    SharedAddress(g_shared + Config::kBarriers) + warp * Config::kStages * 8, lane);
  // Queries and their order are asked for before the first pages, behind which they would wait.
  QueryOrder<Config::kHeadDim> order = {};
  const auto load_order = [&] {
    if constexpr ((IsPair<Tiles>::value || ...)) {
      if (run.format == DecodeFormat::kPair) order.Load(MapOf(params, run), lane);
    }
  };
  load_order();
  const auto fetched = Config::Rows::Fetch(params);
  // What a block needs at first beside data, its instructions above all, would wait behind the data it has asked for:
  // some warps begin early, so that the memory is not idle, the others when they have their queries.
  int primed = 0;
  if (warp % 4 == 0) loader.Issue(primed++);
  if (threadIdx.x < 16) Shared<uint32_t>(Config::kOnes + 4 * threadIdx.x) = 0x3C003C00U;
  BlockEnd<Config::kWarps>& block_end = Shared<BlockEnd<Config::kWarps>>(Config::kBlockEnd);
  block_end.Load(params);
  Shared<typename Config::Rows>(Config::kRows).Store(fetched, params.q_scale);
  __syncthreads();

  SoftmaxState<Config::kHeadDim> state;
  int stage = 0;
  uint32_t parity = 0;
  while (run.num_tiles != 0) {
    if (run.begins_item != 0) state.Reset();
    // Values of some formats are stored rotated: the sums are turned into the run's basis and back.
    const bool rotated = (params.rotated >> static_cast<int>(run.format) & 1U) != 0;
    if (rotated && run.begins_item == 0) state.Hadamard();
    ForFormat<Tiles...>(run.format, [&](auto* tiles) {
      using T = std::remove_pointer_t<decltype(tiles)>;
      RunWorker<Config, T, LoaderType>{params, ring, memory, Config::kOnes, lane}.Run(order, state, loader, primed,
                                                                                      stage, parity);
    });
    if (rotated) state.Hadamard();
    FinishRun<Config::kHeadDim>(params, run, state, ring, lane);
    index = run.next;
    if (index == DecodeRun::kNone) break;
    load_run();
    load_order();
  }
  MergeGroups<Config::kHeadDim, Config::kWarps>(params, block_end, Config::kRings, ring_bytes);
}

}  // namespace kvant::kernels::cuda
