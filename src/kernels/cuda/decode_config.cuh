#pragma once

#include <type_traits>

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
  static constexpr uint32_t kBlockEnd = kOnes + kOnesBytes;
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
  struct alignas(16) Load {
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

}  // namespace kvant::kernels::cuda
