#pragma once

#include <type_traits>

#include "kernels/cuda/softmax_state.cuh"

/// Queries on their way into operand registers. A block's first two items are fetched whole, by all its threads, and
/// wait in shared memory; only runs of later items gather from global memory. Everything here runs once or twice a
/// launch, from a cold instruction cache: what counts is the number of instructions (ADR 0102).
namespace kvant::kernels::cuda {

/// Rows of the block's items, scaled by softmax scale · log2(e). Row is float where a key scale is still to come
/// (token tiers), else fp16.
template <int kHeadDim, int kThreads, class Row>
struct BlockRows {
  Row q[2][8][kHeadDim];

  static constexpr int kVectors = 2 * 8 * kHeadDim / 4;
  struct Fetched {
    float4 x[(kVectors + kThreads - 1) / kThreads];
  };

  static KVANT_DEVICE Fetched Fetch(const DecodeParams& params) {
    Fetched fetched;
    const DecodeBlock& block = params.blocks[blockIdx.x];
#pragma unroll
    for (int i = 0; i * kThreads < kVectors; ++i) {
      const uint32_t at = i * kThreads + threadIdx.x;
      const uint32_t set = at / (2 * kHeadDim);
      const uint32_t head = at / (kHeadDim / 4) % 8;
      const bool exists = at < kVectors && head < __ldg(&block.num_q_heads[set % 2]);
      const float* row = params.q + (static_cast<size_t>(__ldg(&block.q_row[set % 2])) + head) * kHeadDim;
      fetched.x[i] =
          exists ? __ldg(reinterpret_cast<const float4*>(row) + at % (kHeadDim / 4)) : make_float4(0, 0, 0, 0);
    }
    return fetched;
  }

  KVANT_DEVICE void Store(const Fetched& fetched, float scale) {
#pragma unroll
    for (int i = 0; i * kThreads < kVectors; ++i) {
      const uint32_t at = i * kThreads + threadIdx.x;
      if (at >= kVectors) break;
      const float4 x = fetched.x[i];
      Row* dst = &q[0][0][0] + 4 * at;
      if constexpr (std::is_same_v<Row, float>) {
        *reinterpret_cast<float4*>(dst) = make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
      } else {
        *reinterpret_cast<uint2*>(dst) =
            make_uint2(PackHalf2(x.x * scale, x.y * scale), PackHalf2(x.z * scale, x.w * scale));
      }
    }
  }
};

/// Channels of a lane's elements under a pair map, four to a word (PairDeviceMap::order).
template <int kHeadDim>
struct QueryOrder {
  uint32_t channels[kHeadDim / 16];

  KVANT_DEVICE void Load(const PairDeviceMap& map, Lane lane) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; i += 4) {
      const uint4 w = __ldg(reinterpret_cast<const uint4*>(&map.order[lane.quad][i]));
      channels[i] = w.x;
      channels[i + 1] = w.y;
      channels[i + 2] = w.z;
      channels[i + 3] = w.w;
    }
  }
  KVANT_DEVICE uint32_t Channel(int step, int element) const { return channels[step] >> (8 * element) & 0xFFU; }
};

/// Channel of an element where nothing is permuted.
KVANT_DEVICE uint32_t PlainChannel(int step, int element, Lane lane) {
  return 16 * step + 2 * lane.quad + element % 2 + element / 2 * 8;
}

/// Fill the operand: at(step, element) gives an element of this lane's head as fp16 bits.
template <int kHeadDim, class At>
KVANT_DEVICE void FillQuery(QueryFragments<kHeadDim>& query, At at) {
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    query.q[i][0] = at(i, 0) | at(i, 1) << 16;
    query.q[i][1] = at(i, 2) | at(i, 3) << 16;
  }
}

KVANT_DEVICE uint32_t HalfBits(float x) { return __half_as_ushort(__float2half_rn(x)); }

/// A row of this lane's head in global memory; 0 where the head does not exist.
struct GlobalRow {
  const float* row;
  float scale;
  bool exists;

  KVANT_DEVICE GlobalRow(const DecodeParams& params, const DecodeRun& run, uint32_t head_dim, Lane lane)
      : row(params.q +
            (static_cast<size_t>(run.sequence) * params.num_q_heads + run.first_q_head + lane.row) * head_dim),
        scale(params.q_scale),
        exists(lane.row < run.num_q_heads) {}
  KVANT_DEVICE float operator[](uint32_t channel) const { return exists ? __ldg(row + channel) * scale : 0.0F; }
};

/// Keys stored as (k - mean) / scale: the scale goes into q, q·mean is added to every logit.
template <int kHeadDim, class RowType>
KVANT_DEVICE void FillEqualized(QueryFragments<kHeadDim>& query, const RowType& row, const uint16_t* map, Lane lane) {
  float offset = 0.0F;
  FillQuery(query, [&](int step, int element) {
    const uint32_t channel = PlainChannel(step, element, lane);
    const float x = row[channel];
    offset = fmaf(x, __half2float(__ushort_as_half(__ldg(map + channel))), offset);
    return HalfBits(x * __half2float(__ushort_as_half(__ldg(map + kHeadDim + channel))));
  });
  offset += __shfl_xor_sync(~0U, offset, 1);
  offset += __shfl_xor_sync(~0U, offset, 2);
  query.offset[0] = __shfl_sync(~0U, offset, 8 * lane.quad);
  query.offset[1] = __shfl_sync(~0U, offset, 8 * lane.quad + 4);
}

/// Σ q of every head, what a token tier's bias or zero point is worth: ones times q.
template <int kHeadDim>
KVANT_DEVICE void TotalQuery(QueryFragments<kHeadDim>& query) {
  constexpr uint32_t kOne = 0x3C003C00U;
  float total[4] = {};
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) Mma(total, kOne, kOne, kOne, kOne, query.q[i][0], query.q[i][1]);
  query.total[0] = total[0];
  query.total[1] = total[1];
}

}  // namespace kvant::kernels::cuda
