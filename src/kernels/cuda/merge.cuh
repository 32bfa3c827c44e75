#pragma once

#include "kernels/cuda/softmax_state.cuh"

/// Partial results: what a warp leaves behind, and how the parts of an item become its output. A part is, per query
/// head, Σ 2^(logit - reference)·v, the reference and Σ 2^(logit - reference).
namespace kvant::kernels::cuda {

/// A part in shared memory: rows of kHeadDim + 4 floats (no bank conflicts when fragments are written), then
/// reference and sum of each head.
template <int kHeadDim>
struct SharedPart {
  static constexpr uint32_t kRow = kHeadDim + 4;
  uint32_t at;  ///< offset in shared memory
  KVANT_DEVICE float* Row(uint32_t head) const { return &Shared<float>(at + 4 * head * kRow); }
  KVANT_DEVICE float* Stats(uint32_t head) const { return &Shared<float>(at + 4 * (8 * kRow + 2 * head)); }
};

KVANT_DEVICE float* OutputRow(const DecodeParams& params, uint32_t sequence, uint32_t q_head, uint32_t head_dim) {
  return params.out + (static_cast<size_t>(sequence) * params.num_q_heads + q_head) * head_dim;
}

/// Writes acc · scale[head] to row(head)[channel]; stats(head) gets reference and sum when it is not null.
template <int kHeadDim, class RowOf>
KVANT_DEVICE void WriteFragments(const SoftmaxState<kHeadDim>& state, float scale0, float scale1, uint32_t num_heads,
                                 Lane lane, RowOf row) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t head = 2 * lane.quad + j % 2;
    if (head >= num_heads) continue;
    float* dst = row(head) + lane.row + (j < 2 ? 0 : 8);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) dst[16 * i] = state.acc[i][j] * (j % 2 == 0 ? scale0 : scale1);
  }
}

/// Four channels a lane of one head, accumulated over parts that arrive in any order of references.
template <int kHeadDim>
struct HeadMerge {
  static constexpr int kVectors = (kHeadDim + 127) / 128;
  float4 out[kVectors];
  float reference = -1e30F;
  float sum = 0.0F;

  KVANT_DEVICE HeadMerge() {
#pragma unroll
    for (auto& o : out) o = make_float4(0, 0, 0, 0);
  }
  KVANT_DEVICE void Add(const float4 (&part)[kVectors], float part_reference, float part_sum) {
    const float next = fmaxf(reference, part_reference);
    const float mine = Exp2(reference - next);
    const float theirs = Exp2(part_reference - next);
    reference = next;
    sum = sum * mine + part_sum * theirs;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      out[i].x = out[i].x * mine + part[i].x * theirs;
      out[i].y = out[i].y * mine + part[i].y * theirs;
      out[i].z = out[i].z * mine + part[i].z * theirs;
      out[i].w = out[i].w * mine + part[i].w * theirs;
    }
  }
  KVANT_DEVICE bool Holds(int vector, uint32_t lane) const { return (vector * 32 + lane) * 4 < kHeadDim; }
  KVANT_DEVICE void Write(float* row, float scale, uint32_t lane) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!Holds(i, lane)) continue;
      reinterpret_cast<float4*>(row)[i * 32 + lane] =
          make_float4(out[i].x * scale, out[i].y * scale, out[i].z * scale, out[i].w * scale);
    }
  }
};

/// One head of an item from its slots in global memory, eight parts in flight.
template <int kHeadDim>
KVANT_DEVICE void MergeSlots(const DecodeParams& params, const DecodeItem& item, uint32_t head, uint32_t lane) {
  HeadMerge<kHeadDim> merge;
  constexpr int kVectors = HeadMerge<kHeadDim>::kVectors;
  constexpr uint32_t kAhead = 8;
  for (uint32_t first = 0; first < item.num_slots; first += kAhead) {
    float4 part[kAhead][kVectors];
    float2 stats[kAhead];
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t slot = item.first_slot + min(first + k, item.num_slots - 1);
      const auto* row = reinterpret_cast<const float4*>(params.partial_out + (size_t{slot} * 8 + head) * kHeadDim);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) part[k][i] = __ldcg(row + min(i * 32 + lane, kHeadDim / 4U - 1));
      stats[k] = __ldcg(reinterpret_cast<const float2*>(params.partial_stats) + size_t{slot} * 8 + head);
    }
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (first + k < item.num_slots) merge.Add(part[k], stats[k].x, stats[k].y);
    }
  }
  merge.Write(OutputRow(params, item.sequence, item.first_q_head + head, kHeadDim), 1.0F / merge.sum, lane);
}

KVANT_DEVICE DecodeItem LoadItem(const DecodeParams& params, uint32_t index) {
  const auto* header = reinterpret_cast<const DecodePlanHeader*>(params.plan);
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(params.plan + header->items) + index);
  DecodeItem item;
  *reinterpret_cast<uint4*>(&item) = bits;
  return item;
}

/// True for the part that arrives last; the counter is then zero again for the next launch.
KVANT_DEVICE bool ArriveLast(const DecodeParams& params, uint32_t item, uint32_t num_slots) {
  __threadfence();
  const bool last = atomicAdd(params.arrived + item, 1U) == num_slots - 1;
  if (last) {
    params.arrived[item] = 0;
    __threadfence();
  }
  return last;
}

/// What the run's end asks for. `ring` is the warp's own and idle when the end is kShared.
template <int kHeadDim>
KVANT_DEVICE void FinishRun(const DecodeParams& params, const DecodeRun& run, SoftmaxState<kHeadDim>& state,
                            uint32_t ring, Lane lane) {
  if (run.end == RunEnd::kContinue) return;
  const float2 sum = state.Sum(lane);
  if (run.end == RunEnd::kFinal) {
    WriteFragments<kHeadDim>(state, 1.0F / sum.x, 1.0F / sum.y, run.num_q_heads, lane, [&](uint32_t head) {
      return OutputRow(params, run.sequence, run.first_q_head + head, kHeadDim);
    });
    return;
  }
  const SharedPart<kHeadDim> shared{ring};
  const bool to_shared = run.end == RunEnd::kShared;
  const auto row = [&](uint32_t head) {
    return to_shared ? shared.Row(head) : params.partial_out + (static_cast<size_t>(run.slot) * 8 + head) * kHeadDim;
  };
  WriteFragments<kHeadDim>(state, 1.0F, 1.0F, run.num_q_heads, lane, row);
  if (lane.row == 0) {
    for (int j = 0; j < 2; ++j) {
      const uint32_t head = 2 * lane.quad + j;
      float* stats = to_shared ? shared.Stats(head) : params.partial_stats + (static_cast<size_t>(run.slot) * 8 + head) * 2;
      stats[0] = state.reference[j];
      stats[1] = j == 0 ? sum.x : sum.y;
    }
  }
  if (to_shared) return;
  const DecodeItem item = LoadItem(params, run.item);
  __threadfence();
  __syncwarp();
  bool last = false;
  if (lane.id == 0) last = ArriveLast(params, run.item, item.num_slots);
  if (__shfl_sync(~0U, last, 0)) {
    __threadfence();
    for (uint32_t head = 0; head < item.num_q_heads; ++head) MergeSlots<kHeadDim>(params, item, head, lane.id);
  }
}

/// The end of a block: its warps' last parts, group by group; then the item's slots, if this was the last of them.
template <int kHeadDim, int kWarps>
KVANT_DEVICE void MergeGroups(const DecodeParams& params, uint32_t rings, uint32_t ring_bytes) {
  __shared__ bool is_last;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  const auto* header = reinterpret_cast<const DecodePlanHeader*>(params.plan);
  const auto* borders = reinterpret_cast<const uint32_t*>(params.plan + header->block_groups);
  const auto* groups = reinterpret_cast<const DecodeGroup*>(params.plan + header->groups);
  const uint32_t begin = __ldg(borders + blockIdx.x);
  const uint32_t end = __ldg(borders + blockIdx.x + 1);
  __syncthreads();
  for (uint32_t g = begin; g < end; ++g) {
    const DecodeGroup group = groups[g];
    const DecodeItem item = LoadItem(params, group.item);
    for (uint32_t head = warp; head < item.num_q_heads; head += kWarps) {
      HeadMerge<kHeadDim> merge;
      for (uint32_t warps = group.warps; warps != 0; warps &= warps - 1) {
        const uint32_t w = __ffs(warps) - 1;
        const SharedPart<kHeadDim> part{rings + w * ring_bytes};
        float4 values[HeadMerge<kHeadDim>::kVectors];
#pragma unroll
        for (int i = 0; i < HeadMerge<kHeadDim>::kVectors; ++i) {
          values[i] = reinterpret_cast<const float4*>(part.Row(head))[min(i * 32 + lane, kHeadDim / 4U - 1)];
        }
        merge.Add(values, part.Stats(head)[0], part.Stats(head)[1]);
      }
      if (group.slot == DecodeRun::kNone) {
        merge.Write(OutputRow(params, item.sequence, item.first_q_head + head, kHeadDim), 1.0F / merge.sum, lane);
        continue;
      }
      merge.Write(params.partial_out + (static_cast<size_t>(group.slot) * 8 + head) * kHeadDim, 1.0F, lane);
      if (lane == 0) {
        float* stats = params.partial_stats + (static_cast<size_t>(group.slot) * 8 + head) * 2;
        stats[0] = merge.reference;
        stats[1] = merge.sum;
      }
    }
    if (group.slot == DecodeRun::kNone) continue;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = ArriveLast(params, group.item, item.num_slots);
    __syncthreads();
    if (is_last) {
      __threadfence();
      for (uint32_t head = warp; head < item.num_q_heads; head += kWarps) MergeSlots<kHeadDim>(params, item, head, lane);
    }
  }
}

}  // namespace kvant::kernels::cuda
