#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/row_sums.cuh"
#include "kernels/cuda/soft_cap.cuh"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/importance.h"

namespace kvant::kernels::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

__host__ __device__ constexpr uint32_t CeilOf(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/// The call with scales in units of log2, and the workspace. Queries are counted up to whole tiles of columns there;
/// one that does not exist has an infinite normalizer, so that nobody gets a share of it.
struct MassParams {
  AttentionMass call;
  float scale = 1.0F;
  float cap = 0.0F;  ///< 0: none
  uint32_t splits = 1;
  uint32_t padded = 0;            ///< num_queries up to whole tiles
  float2* stats = nullptr;        ///< [split][q head][padded] (reference, sum)
  float* normalizers = nullptr;   ///< [q head][padded] log2 Σ 2^logit
  uint32_t* positions = nullptr;  ///< [padded]

  KVANT_DEVICE uint32_t q_heads() const { return call.num_kv_heads * call.q_heads_per_kv_head; }
  KVANT_DEVICE uint32_t PositionOf(uint32_t query) const {
    return call.positions != nullptr ? __ldg(call.positions + query) : call.first_position + query;
  }
  KVANT_DEVICE bool Sees(uint32_t position, uint32_t key) const {
    return key <= position && (call.window == 0 || position - key < call.window);
  }
  template <bool kSoftCap>
  KVANT_DEVICE float Logit(float product) const {
    return kSoftCap ? CapLogit(product * scale, cap) : product * scale;
  }
  KVANT_DEVICE HeadRows Queries(uint32_t q_head, int head_dim) const {
    return {static_cast<const __half*>(call.q) + size_t{q_head} * head_dim, size_t{q_heads()} * head_dim,
            call.num_queries};
  }
  KVANT_DEVICE HeadRows Keys(uint32_t kv_head, int head_dim) const {
    return {static_cast<const __half*>(call.keys) + size_t{kv_head} * head_dim, size_t{call.num_kv_heads} * head_dim,
            call.num_keys};
  }
};

/// Calls use(tile, stage) for `count` tiles with the next one on its way; load(tile, stage) asks for one.
template <class Load, class Use>
KVANT_DEVICE void ForTiles(uint32_t count, Load load, Use use) {
  if (count != 0) load(0U, 0U);
  CommitCopies();
  for (uint32_t i = 0; i < count; ++i) {
    if (i + 1 < count) load(i + 1, (i + 1) % 2);
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
    use(i, i % 2);
    __syncthreads();
  }
}

/// A tile of products as logits, into the sums.
template <bool kSoftCap, bool kMasked>
KVANT_DEVICE void AddLogits(const MassParams& params, RowSums& sums, const uint32_t (&position)[2][2],
                            uint32_t first_key, ScoreTiles& s) {
#pragma unroll
  for (int operand = 0; operand < 2; ++operand) {
#pragma unroll
    for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool seen = !kMasked || params.Sees(position[operand][j / 2], first_key + ColumnOf(t, j));
        s[operand][t][j] = seen ? params.Logit<kSoftCap>(s[operand][t][j]) : kNoLogit;
      }
    }
  }
  sums.Add<kMasked>(s);
}

/// First pass: a block has 128 queries of one head and one share of the keys they see.
template <int kHeadDim, bool kSoftCap>
__global__ void __launch_bounds__(kScoreThreads, kHeadDim == 256 ? 2 : 3) QuerySumsKernel(const MassParams params) {
  auto* tiles = &Shared<ColumnTile<kHeadDim>>(0);
  const uint32_t first_row = (gridDim.y - 1 - blockIdx.y) * kScoreRows;  // who sees most goes first
  const uint32_t q_head = blockIdx.x;
  const uint32_t last_row = min(first_row + kScoreRows, params.call.num_queries) - 1;
  const uint32_t first_position = params.PositionOf(first_row);
  const uint32_t end_tile = params.PositionOf(last_row) / kScoreColumns + 1;
  const uint32_t window = params.call.window;
  const uint32_t first_tile =
      window != 0 && first_position >= window ? (first_position - window + 1) / kScoreColumns : 0;
  const uint32_t begin = first_tile + (end_tile - first_tile) * blockIdx.z / params.splits;
  const uint32_t end = first_tile + (end_tile - first_tile) * (blockIdx.z + 1) / params.splits;

  const uint32_t warp_row = first_row + threadIdx.x / 32 * kWarpRows;
  const RowFragments<kHeadDim> rows(params.Queries(q_head, kHeadDim), warp_row);
  const HeadRows keys = params.Keys(q_head / params.call.q_heads_per_kv_head, kHeadDim);
  uint32_t position[2][2];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    position[i / 2][i % 2] = params.PositionOf(min(warp_row + RowOf(i / 2, i % 2 * 2), last_row));
  }
  const uint32_t warp_position = params.PositionOf(min(warp_row, last_row));
  RowSums sums;
  ForTiles(
      end - begin, [&](uint32_t i, uint32_t stage) { tiles[stage].Load(keys, (begin + i) * kScoreColumns); },
      [&](uint32_t i, uint32_t stage) {
        ScoreTiles s;
        tiles[stage].Scores(rows, s);
        const uint32_t first_key = (begin + i) * kScoreColumns;
        if (window == 0 && first_key + kScoreColumns - 1 <= warp_position) {
          AddLogits<kSoftCap, false>(params, sums, position, first_key, s);
        } else {
          AddLogits<kSoftCap, true>(params, sums, position, first_key, s);
        }
      });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 total = sums.Total(i / 2, i % 2);
    const uint32_t row = warp_row + RowOf(i / 2, i % 2 * 2);
    if (threadIdx.x % 4 != 0 || row > last_row) continue;
    params.stats[(size_t{blockIdx.z} * params.q_heads() + q_head) * params.padded + row] = total;
  }
}

/// Between the passes: the splits of every query become one number.
__global__ void __launch_bounds__(256) NormalizersKernel(const MassParams params) {
  const uint32_t query = blockIdx.x * 256 + threadIdx.x;
  const uint32_t q_head = blockIdx.y;
  if (query >= params.padded) return;
  const bool exists = query < params.call.num_queries;
  float2 total = make_float2(kNoLogit, 0.0F);
  for (uint32_t split = 0; exists && split < params.splits; ++split) {
    total = RowSums::Merged(total, params.stats[(size_t{split} * params.q_heads() + q_head) * params.padded + query]);
  }
  params.normalizers[size_t{q_head} * params.padded + query] = exists ? total.x + __log2f(total.y) : INFINITY;
  if (q_head == 0) params.positions[query] = exists ? params.PositionOf(query) : 0;
}

/// 64 queries with what their probabilities are relative to.
template <int kHeadDim>
struct QueryTile {
  ColumnTile<kHeadDim> rows;
  float normalizer[kScoreColumns];
  uint32_t position[kScoreColumns];

  KVANT_DEVICE void Load(const MassParams& params, uint32_t q_head, uint32_t first) {
    rows.Load(params.Queries(q_head, kHeadDim), first);
    const uint32_t at = threadIdx.x % 16 * 4;
    if (threadIdx.x < 16) {
      CopyAsync16(SharedAddress(normalizer + at), params.normalizers + size_t{q_head} * params.padded + first + at);
    } else if (threadIdx.x < 32) {
      CopyAsync16(SharedAddress(position + at), params.positions + first + at);
    }
  }
};

/// A lane's four keys' shares of the probabilities of a tile of queries.
template <bool kSoftCap, bool kMasked, int kHeadDim>
KVANT_DEVICE void AddShares(const MassParams& params, const QueryTile<kHeadDim>& tile, uint32_t first_key,
                            const ScoreTiles& s, float (&mass)[2][2]) {
#pragma unroll
  for (int t = 0; t < kScoreTiles; ++t) {
    const uint32_t column = ColumnOf(t, 0);
    const float2 normalizer = *reinterpret_cast<const float2*>(&tile.normalizer[column]);
#pragma unroll
    for (int operand = 0; operand < 2; ++operand) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = params.Logit<kSoftCap>(s[operand][t][j]);
        const float share = Exp2(logit - (j % 2 == 0 ? normalizer.x : normalizer.y));
        const bool seen = !kMasked || params.Sees(tile.position[column + j % 2], first_key + RowOf(operand, j));
        mass[operand][j / 2] += seen ? share : 0.0F;
      }
    }
  }
}

/// First tile of queries whose last position is at least `position`; tiles where there is none.
KVANT_DEVICE uint32_t FirstTileAt(const MassParams& params, uint32_t tiles, uint32_t position) {
  uint32_t low = 0;
  uint32_t high = tiles;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    const uint32_t last = min((middle + 1) * kScoreColumns, params.call.num_queries) - 1;
    if (params.PositionOf(last) >= position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Second pass: a block has 128 keys of one KV head and meets all queries that see them.
template <int kHeadDim, bool kSoftCap>
__global__ void __launch_bounds__(kScoreThreads, kHeadDim == 256 ? 2 : 3) KeySharesKernel(const MassParams params) {
  auto* tiles = &Shared<QueryTile<kHeadDim>>(0);
  const uint32_t kv_head = blockIdx.x;
  const uint32_t first_key = blockIdx.y * kScoreRows;  // who is seen by most goes first
  const uint32_t num_tiles = params.padded / kScoreColumns;
  const uint32_t begin = FirstTileAt(params, num_tiles, first_key);
  const uint32_t out_of_sight = first_key + kScoreRows - 1 + params.call.window;
  const uint32_t end =
      params.call.window == 0 ? num_tiles : min(num_tiles, FirstTileAt(params, num_tiles, out_of_sight) + 1);
  const uint32_t per_head = end > begin ? end - begin : 0;

  const uint32_t warp_key = first_key + threadIdx.x / 32 * kWarpRows;
  const RowFragments<kHeadDim> rows(params.Keys(kv_head, kHeadDim), warp_key);
  float mass[2][2] = {};
  ForTiles(
      per_head * params.call.q_heads_per_kv_head,
      [&](uint32_t i, uint32_t stage) {
        tiles[stage].Load(params, kv_head * params.call.q_heads_per_kv_head + i / per_head,
                          (begin + i % per_head) * kScoreColumns);
      },
      [&](uint32_t, uint32_t stage) {
        const QueryTile<kHeadDim>& tile = tiles[stage];
        ScoreTiles s;
        tile.rows.Scores(rows, s);
        if (params.call.window == 0 && tile.position[0] >= warp_key + kWarpRows - 1) {
          AddShares<kSoftCap, false>(params, tile, warp_key, s, mass);
        } else {
          AddShares<kSoftCap, true>(params, tile, warp_key, s, mass);
        }
      });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float total = mass[i / 2][i % 2];
    total += __shfl_xor_sync(~0U, total, 1);
    total += __shfl_xor_sync(~0U, total, 2);
    const uint32_t key = warp_key + RowOf(i / 2, i % 2 * 2);
    if (threadIdx.x % 4 != 0 || key >= params.call.num_keys) continue;
    params.call.mass[size_t{kv_head} * params.call.num_keys + key] += total;
  }
}

/// Few queries against many keys would leave most of the GPU idle: then the keys are shared out.
uint32_t SplitsOf(const AttentionMass& mass) {
  constexpr uint32_t kWantedBlocks = 4 * 132;
  const uint32_t blocks = CeilOf(mass.num_queries, kScoreRows) * mass.num_kv_heads * mass.q_heads_per_kv_head;
  return std::clamp(CeilOf(kWantedBlocks, std::max(blocks, 1U)), 1U,
                    std::min(16U, CeilOf(mass.num_keys, kScoreColumns)));
}

uint32_t PaddedQueries(const AttentionMass& mass) { return CeilOf(mass.num_queries, kScoreColumns) * kScoreColumns; }

MassParams ParamsOf(const AttentionMass& mass) {
  MassParams params;
  params.call = mass;
  params.scale = mass.softmax_scale * kLog2E;
  params.cap = mass.soft_cap * kLog2E;
  params.splits = SplitsOf(mass);
  params.padded = PaddedQueries(mass);
  const size_t rows = size_t{mass.num_kv_heads} * mass.q_heads_per_kv_head * params.padded;
  params.stats = static_cast<float2*>(mass.workspace);
  params.normalizers = reinterpret_cast<float*>(params.stats + params.splits * rows);
  params.positions = reinterpret_cast<uint32_t*>(params.normalizers + rows);
  return params;
}

template <int kHeadDim, bool kSoftCap>
Status Launch(const MassParams& params, cudaStream_t stream) {
  const AttentionMass& call = params.call;
  constexpr int kFirst = 2 * static_cast<int>(sizeof(ColumnTile<kHeadDim>));
  constexpr int kSecond = 2 * static_cast<int>(sizeof(QueryTile<kHeadDim>));
  auto* first = QuerySumsKernel<kHeadDim, kSoftCap>;
  auto* second = KeySharesKernel<kHeadDim, kSoftCap>;
  constexpr auto kLimit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  KVANT_RETURN_IF_ERROR(StatusOf(cudaFuncSetAttribute(first, kLimit, kFirst), "attention mass"));
  KVANT_RETURN_IF_ERROR(StatusOf(cudaFuncSetAttribute(second, kLimit, kSecond), "attention mass"));
  const uint32_t q_heads = call.num_kv_heads * call.q_heads_per_kv_head;
  first<<<dim3(q_heads, CeilOf(call.num_queries, kScoreRows), params.splits), kScoreThreads, kFirst, stream>>>(params);
  NormalizersKernel<<<dim3(CeilOf(params.padded, 256), q_heads), 256, 0, stream>>>(params);
  second<<<dim3(call.num_kv_heads, CeilOf(call.num_keys, kScoreRows)), kScoreThreads, kSecond, stream>>>(params);
  return StatusOf(cudaGetLastError(), "attention mass");
}

}  // namespace

size_t AttentionMassWorkspace(const AttentionMass& mass) {
  const size_t padded = PaddedQueries(mass);
  const size_t rows = size_t{mass.num_kv_heads} * mass.q_heads_per_kv_head * padded;
  return rows * (SplitsOf(mass) * sizeof(float2) + sizeof(float)) + padded * sizeof(uint32_t);
}

Status AddAttentionMass(const AttentionMass& mass, Stream stream) {
  if (mass.num_queries == 0) {
    return OkStatus();
  }
  const MassParams params = ParamsOf(mass);
  cudaStream_t s = AsStream(stream);
  return ForHeadDim(mass.head_dim, [&](auto d) {
    return params.cap == 0.0F ? Launch<d(), false>(params, s) : Launch<d(), true>(params, s);
  });
}

}  // namespace kvant::kernels::cuda
