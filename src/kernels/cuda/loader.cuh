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

}  // namespace kvant::kernels::cuda
