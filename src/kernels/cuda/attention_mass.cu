#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/score_tile.cuh"
#include "kernels/cuda/soft_cap.cuh"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/importance.h"

namespace kvant::kernels::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kNoLogit = -1e30F;

/// The call with scales in units of log2, and where the softmax sums lie: [split][q head][query] (reference, sum).
struct MassParams {
  AttentionMass call;
  float scale;
  float cap;
  uint32_t splits;
  float2* stats;

  KVANT_DEVICE uint32_t q_heads() const { return call.num_kv_heads * call.q_heads_per_kv_head; }
  KVANT_DEVICE uint32_t PositionOf(uint32_t query) const {
    return call.positions != nullptr ? __ldg(call.positions + query) : call.first_position + query;
  }
  KVANT_DEVICE bool Sees(uint32_t position, uint32_t key) const {
    return key <= position && (call.window == 0 || position - key < call.window);
  }
  KVANT_DEVICE float Logit(float product) const {
    const float x = product * scale;
    return cap == 0.0F ? x : CapLogit(x, cap);
  }
  KVANT_DEVICE HeadRows Queries(uint32_t q_head, int head_dim) const {
    return {static_cast<const __half*>(call.q) + size_t{q_head} * head_dim, size_t{q_heads()} * head_dim, call.num_queries};
  }
  KVANT_DEVICE HeadRows Keys(uint32_t kv_head, int head_dim) const {
    return {static_cast<const __half*>(call.keys) + size_t{kv_head} * head_dim, size_t{call.num_kv_heads} * head_dim,
            call.num_keys};
  }
};

/// Calls use(tile) for `count` tiles with the next one on its way; load(tile, stage) asks for one.
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

/// Softmax sums of a lane's two rows over the columns it holds.
struct RowSums {
  float reference[2] = {kNoLogit, kNoLogit};
  float sum[2] = {0.0F, 0.0F};

  KVANT_DEVICE void Add(float (&logits)[kScoreTiles][4]) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      float most = reference[upper];
#pragma unroll
      for (const auto& tile : logits) most = fmaxf(most, fmaxf(tile[2 * upper], tile[2 * upper + 1]));
      sum[upper] *= Exp2(reference[upper] - most);
      reference[upper] = most;
#pragma unroll
      for (const auto& tile : logits) {
        for (int j = 0; j < 2; ++j) {
          const float x = tile[2 * upper + j];
          sum[upper] += x == kNoLogit ? 0.0F : Exp2(x - most);
        }
      }
    }
  }

  /// Over the four lanes that share the rows.
  KVANT_DEVICE float2 Total(int upper) const {
    float2 total = make_float2(reference[upper], sum[upper]);
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
      const float other = __shfl_xor_sync(~0U, total.x, distance);
      const float other_sum = __shfl_xor_sync(~0U, total.y, distance);
      const float most = fmaxf(total.x, other);
      total.y = total.y * Exp2(total.x - most) + other_sum * Exp2(other - most);
      total.x = most;
    }
    return total;
  }
};

/// First pass: a block has 128 queries of one head and one share of the keys they see.
template <int kHeadDim>
__global__ void __launch_bounds__(kScoreThreads, kHeadDim == 256 ? 1 : 2) QuerySumsKernel(const MassParams params) {
  auto* tiles = &Shared<ColumnTile<kHeadDim>>(0);
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t first_row = blockIdx.x * kScoreRows;
  const uint32_t q_head = blockIdx.y;
  const uint32_t last_row = min(first_row + kScoreRows, params.call.num_queries) - 1;
  const uint32_t first_position = params.PositionOf(first_row);
  const uint32_t end_tile = params.PositionOf(last_row) / kScoreColumns + 1;
  const uint32_t window = params.call.window;
  const uint32_t first_tile = window != 0 && first_position >= window ? (first_position - window + 1) / kScoreColumns : 0;
  const uint32_t begin = first_tile + (end_tile - first_tile) * blockIdx.z / params.splits;
  const uint32_t end = first_tile + (end_tile - first_tile) * (blockIdx.z + 1) / params.splits;

  const uint32_t warp_row = first_row + threadIdx.x / 32 * 16;
  const RowFragments<kHeadDim> rows(params.Queries(q_head, kHeadDim), warp_row);
  const HeadRows keys = params.Keys(q_head / params.call.q_heads_per_kv_head, kHeadDim);
  uint32_t position[2];
  for (uint32_t upper = 0; upper < 2; ++upper) {
    position[upper] = params.PositionOf(min(warp_row + lane / 4 + 8 * upper, last_row));
  }
  RowSums sums;
  ForTiles(
      end - begin, [&](uint32_t i, uint32_t stage) { tiles[stage].Load(keys, (begin + i) * kScoreColumns); },
      [&](uint32_t i, uint32_t stage) {
        float s[kScoreTiles][4];
        tiles[stage].Scores(rows, s);
        const uint32_t first_key = (begin + i) * kScoreColumns + lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            s[t][j] = params.Sees(position[j / 2], first_key + 8 * t + j % 2) ? params.Logit(s[t][j]) : kNoLogit;
          }
        }
        sums.Add(s);
      });
  for (uint32_t upper = 0; upper < 2; ++upper) {
    const float2 total = sums.Total(static_cast<int>(upper));
    const uint32_t row = warp_row + lane / 4 + 8 * upper;
    if (lane % 4 != 0 || row > last_row) continue;
    params.stats[(size_t{blockIdx.z} * params.q_heads() + q_head) * params.call.num_queries + row] = total;
  }
}

/// 64 queries with what their probabilities are relative to.
template <int kHeadDim>
struct QueryTile {
  ColumnTile<kHeadDim> rows;
  float normalizer[kScoreColumns];  ///< log2 Σ 2^logit
  uint32_t position[kScoreColumns];

  KVANT_DEVICE void Load(const MassParams& params, uint32_t q_head, uint32_t first) {
    rows.Load(params.Queries(q_head, kHeadDim), first);
    if (threadIdx.x >= kScoreColumns) return;
    const uint32_t query = first + threadIdx.x;
    const bool exists = query < params.call.num_queries;
    position[threadIdx.x] = exists ? params.PositionOf(query) : 0;
    float most = kNoLogit;
    float sum = exists ? 0.0F : INFINITY;
    for (uint32_t split = 0; exists && split < params.splits; ++split) {
      const float2 part = __ldg(params.stats + (size_t{split} * params.q_heads() + q_head) * params.call.num_queries + query);
      const float next = fmaxf(most, part.x);
      sum = sum * Exp2(most - next) + part.y * Exp2(part.x - next);
      most = next;
    }
    normalizer[threadIdx.x] = exists ? most + __log2f(sum) : INFINITY;
  }
};

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
template <int kHeadDim>
__global__ void __launch_bounds__(kScoreThreads, kHeadDim == 256 ? 1 : 2) KeySharesKernel(const MassParams params) {
  auto* tiles = &Shared<QueryTile<kHeadDim>>(0);
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t kv_head = blockIdx.y;
  const uint32_t first_key = blockIdx.x * kScoreRows;
  const uint32_t num_tiles = (params.call.num_queries + kScoreColumns - 1) / kScoreColumns;
  const uint32_t begin = FirstTileAt(params, num_tiles, first_key);
  const uint32_t out_of_sight = first_key + kScoreRows - 1 + params.call.window;
  const uint32_t end = params.call.window == 0 ? num_tiles : min(num_tiles, FirstTileAt(params, num_tiles, out_of_sight) + 1);
  const uint32_t per_head = end > begin ? end - begin : 0;

  const uint32_t warp_key = first_key + threadIdx.x / 32 * 16;
  const RowFragments<kHeadDim> rows(params.Keys(kv_head, kHeadDim), warp_key);
  float mass[2] = {0.0F, 0.0F};
  ForTiles(
      per_head * params.call.q_heads_per_kv_head,
      [&](uint32_t i, uint32_t stage) {
        tiles[stage].Load(params, kv_head * params.call.q_heads_per_kv_head + i / per_head,
                          (begin + i % per_head) * kScoreColumns);
      },
      [&](uint32_t, uint32_t stage) {
        const QueryTile<kHeadDim>& tile = tiles[stage];
        float s[kScoreTiles][4];
        tile.rows.Scores(rows, s);
#pragma unroll
        for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const uint32_t query = 8 * t + lane % 4 * 2 + j % 2;
            const uint32_t key = warp_key + lane / 4 + 8 * (j / 2);
            const float share = Exp2(params.Logit(s[t][j]) - tile.normalizer[query]);
            mass[j / 2] += params.Sees(tile.position[query], key) ? share : 0.0F;
          }
        }
      });
  for (uint32_t upper = 0; upper < 2; ++upper) {
    float total = mass[upper];
    total += __shfl_xor_sync(~0U, total, 1);
    total += __shfl_xor_sync(~0U, total, 2);
    const uint32_t key = warp_key + lane / 4 + 8 * upper;
    if (lane % 4 == 0 && key < params.call.num_keys) params.call.mass[size_t{kv_head} * params.call.num_keys + key] += total;
  }
}

uint32_t CeilOf(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/// Few queries against many keys would leave most of the GPU idle: then the keys are shared out.
uint32_t SplitsOf(const AttentionMass& mass) {
  constexpr uint32_t kWantedBlocks = 4 * 132;
  const uint32_t blocks = CeilOf(mass.num_queries, kScoreRows) * mass.num_kv_heads * mass.q_heads_per_kv_head;
  return std::clamp(CeilOf(kWantedBlocks, std::max(blocks, 1U)), 1U, std::min(16U, CeilOf(mass.num_keys, kScoreColumns)));
}

template <int kHeadDim>
Status LaunchFor(const MassParams& params, cudaStream_t stream) {
  const AttentionMass& call = params.call;
  constexpr int kFirst = 2 * static_cast<int>(sizeof(ColumnTile<kHeadDim>));
  constexpr int kSecond = 2 * static_cast<int>(sizeof(QueryTile<kHeadDim>));
  auto* first = QuerySumsKernel<kHeadDim>;
  auto* second = KeySharesKernel<kHeadDim>;
  constexpr auto kLimit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  KVANT_RETURN_IF_ERROR(StatusOf(cudaFuncSetAttribute(first, kLimit, kFirst), "attention mass"));
  KVANT_RETURN_IF_ERROR(StatusOf(cudaFuncSetAttribute(second, kLimit, kSecond), "attention mass"));
  const uint32_t q_heads = call.num_kv_heads * call.q_heads_per_kv_head;
  first<<<dim3(CeilOf(call.num_queries, kScoreRows), q_heads, params.splits), kScoreThreads, kFirst, stream>>>(params);
  second<<<dim3(CeilOf(call.num_keys, kScoreRows), call.num_kv_heads), kScoreThreads, kSecond, stream>>>(params);
  return StatusOf(cudaGetLastError(), "attention mass");
}

}  // namespace

size_t AttentionMassWorkspace(const AttentionMass& mass) {
  return size_t{SplitsOf(mass)} * mass.num_kv_heads * mass.q_heads_per_kv_head * mass.num_queries * sizeof(float2);
}

Status AddAttentionMass(const AttentionMass& mass, Stream stream) {
  if (mass.num_queries == 0) {
    return OkStatus();
  }
  const MassParams params{mass, mass.softmax_scale * kLog2E, mass.soft_cap * kLog2E, SplitsOf(mass),
                          static_cast<float2*>(mass.workspace)};
  switch (mass.head_dim) {
    case 64: return LaunchFor<64>(params, AsStream(stream));
    case 128: return LaunchFor<128>(params, AsStream(stream));
    case 256: return LaunchFor<256>(params, AsStream(stream));
    default:
      return {StatusCode::kModelUnsupported,
              "the CUDA kernels have head dimensions 64, 128 and 256, not " + std::to_string(mass.head_dim)};
  }
}

}  // namespace kvant::kernels::cuda
