#pragma once

#include "kernels/cuda/decode_config.cuh"

namespace kvant::kernels::cuda {

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
    LoadFirstPageId();
  }

  /// Start the next load into `stage`; nothing when the runs are at their end. The stage must have been read.
  KVANT_DEVICE void Issue(int stage) {
    __syncwarp();
    const Place at = Load();
#if __CUDA_ARCH__ >= 900
    if (at.left == 0) return;
    const Piece piece = Next(at);
    const uint32_t tail = TailBytes(at);
    // The tail of a record whose last tiles fill the stage stands behind them as it does in the stage.
    const bool at_once = piece.count == at.unit_tiles && piece.ends_page;
    if (lane_.id == 0) {
      const uint32_t dst = ring_ + stage * params_.stage_bytes;
      const uint32_t barrier = barriers_ + 8 * stage;
      const uint64_t policy = EvictFirst();
      BarrierExpect(barrier, piece.bytes + tail);
      BulkCopy(dst, piece.src, piece.bytes + (at_once ? tail : 0), barrier, policy);
      if (tail != 0 && !at_once) BulkCopy(dst + TailPlace(at), piece.record + at.tail, tail, barrier, policy);
    }
    Advance(at, piece.count);
#else
    if (at.left != 0) {
      const Piece piece = Next(at);
      const uint32_t dst = ring_ + stage * params_.stage_bytes;
      WarpCopy(dst, piece.src, piece.bytes, lane_.id);
      if (at.tail != 0) WarpCopy(dst + TailPlace(at), piece.record + at.tail, TailBytes(at), lane_.id);
      Advance(at, piece.count);
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
  using Place = typename Memory::Load;
  KVANT_DEVICE Place& Load() const { return Shared<Memory>(memory_).load; }

  struct Piece {
    const std::byte* record;
    const std::byte* src;
    uint32_t bytes;
    uint32_t count;
    bool ends_page;
  };

  KVANT_DEVICE Piece Next(const Place& at) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t page = page_;
#else
    const uint32_t page = __ldg(at.table + (at.tile >> at.log2_tiles));
#endif
    const uint32_t page_tiles = 1U << at.log2_tiles;
    const uint32_t in_page = at.tile & (page_tiles - 1U);
    const uint32_t count = min(at.unit_tiles - (at.tile & (at.unit_tiles - 1U)), at.left);
    const std::byte* record = at.base + page * at.page_bytes;
    return {record, record + in_page * at.tile_bytes, count * at.tile_bytes, count, in_page + count == page_tiles};
  }

  KVANT_DEVICE void Advance(const Place& at, uint32_t count) {
    const uint32_t tile = at.tile + count;
    const uint32_t left = at.left - count;
    __syncwarp();
    if (left == 0) [[unlikely]] {
      NextRun(at.next_run);
      return;
    }
    if (lane_.id == 0) {
      Load().tile = tile;
      Load().left = left;
    }
    LoadPageId(at.table, tile >> at.log2_tiles);
  }

  KVANT_DEVICE void NextRun(uint32_t next_run) {
    if (lane_.id == 0) {
      Load().left = 0;
      if (next_run != DecodeRun::kNone) Enter(RunOfPlan(params_, next_run));
    }
    __syncwarp();
    LoadFirstPageId();
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
  }

  // Asked for one unit before it is needed.
  KVANT_DEVICE void LoadPageId(const uint32_t* table, uint32_t page) {
#if __CUDA_ARCH__ >= 900
    page_ = __ldg(table + page);
#endif
  }
  KVANT_DEVICE void LoadFirstPageId() {
    if (Load().left != 0) LoadPageId(Load().table, Load().tile >> Load().log2_tiles);
  }

  // The tail of a pair record stands behind a whole unit's place in the stage.
  static KVANT_DEVICE uint32_t TailPlace(const Place& at) { return at.unit_tiles * at.tile_bytes; }
  static KVANT_DEVICE uint32_t TailBytes(const Place& at) {
    return at.tail != 0 ? PairTailBytes<Tiles...>(Config::kHeadDim) : 0U;
  }

  const DecodeParams& params_;
  uint32_t memory_;  // offset in shared memory
  uint32_t ring_;    // shared addresses, as the copies want them
  uint32_t barriers_;
  Lane lane_;
  uint32_t page_ = 0;  // of the next load
};

}  // namespace kvant::kernels::cuda
