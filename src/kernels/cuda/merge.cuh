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

/// One head over the parts of an item or group: four channels a lane and vector.
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

  /// Up to 32 parts: every lane weighs one, then all add them up. The rows are asked for kAhead at a time and before
  /// their weights are known: what counts here is round trips. Behind the last part the last one comes again, with a
  /// weight of 0: a condition would put the loads one after another.
  /// stats(i) is reference and sum of part i, load(i, v) the v-th four of its channels.
  template <uint32_t kAhead, class StatsOf, class LoadOf>
  KVANT_DEVICE void Add(uint32_t count, uint32_t lane, StatsOf stats, LoadOf load) {
    float2 mine = make_float2(-1e30F, 0.0F);
    if (lane < count) mine = stats(lane);
    float weight = 0.0F;
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += kAhead) {
      float4 part[kAhead][kVectors];
#pragma unroll
      for (uint32_t k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          part[k][i] = load(min(first + k, count - 1), min(i * 32 + lane, kHeadDim / 4U - 1));
        }
      }
      if (first == 0) weight = Weigh(mine);
#pragma unroll
      for (uint32_t k = 0; k < kAhead; ++k) {
        const float of_part = __shfl_sync(~0U, weight, (first + k) % 32);
        const float w = first + k < count ? of_part : 0.0F;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          out[i].x = fmaf(w, part[k][i].x, out[i].x);
          out[i].y = fmaf(w, part[k][i].y, out[i].y);
          out[i].z = fmaf(w, part[k][i].z, out[i].z);
          out[i].w = fmaf(w, part[k][i].w, out[i].w);
        }
      }
    }
  }

  KVANT_DEVICE void Write(float* row, float scale, uint32_t lane) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if ((i * 32 + lane) * 4 >= kHeadDim) continue;
      reinterpret_cast<float4*>(row)[i * 32 + lane] =
          make_float4(out[i].x * scale, out[i].y * scale, out[i].z * scale, out[i].w * scale);
    }
  }

 private:
  // The weight of this lane's part, after what was there before has been moved to the common reference.
  KVANT_DEVICE float Weigh(float2 mine) {
    const float next = fmaxf(reference, WarpMax(mine.x));
    const float weight = Exp2(mine.x - next);
    const float before = Exp2(reference - next);
    sum = sum * before + WarpSum(weight * mine.y);
    reference = next;
#pragma unroll
    for (auto& o : out) o = make_float4(o.x * before, o.y * before, o.z * before, o.w * before);
    return weight;
  }
  static KVANT_DEVICE float WarpMax(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, distance));
    return x;
  }
  static KVANT_DEVICE float WarpSum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0U, x, distance);
    return x;
  }
};

/// One head of an item from its slots in global memory.
template <int kHeadDim>
KVANT_DEVICE void MergeSlots(const DecodeParams& params, const DecodeItem& item, uint32_t head, uint32_t lane) {
  HeadMerge<kHeadDim> merge;
  for (uint32_t first = 0; first < item.num_slots; first += 32) {
    const size_t slot = item.first_slot + first;
    // A KV head's share of 132 blocks is up to 18 parts.
    merge.template Add<kHeadDim == 256 ? 9 : 18>(
        min(item.num_slots - first, 32U), lane,
        [&](uint32_t i) {
          return __ldcg(reinterpret_cast<const float2*>(params.partial_stats) + (slot + i) * 8 + head);
        },
        [&](uint32_t i, uint32_t v) {  // past the first level cache: other blocks wrote it
          return __ldcg(reinterpret_cast<const float4*>(params.partial_out + ((slot + i) * 8 + head) * kHeadDim) + v);
        });
  }
  merge.Write(OutputRow(params, item.sequence, item.first_q_head + head, kHeadDim), 1.0F / merge.sum, lane);
}

/// True for the part that arrives last; the counter is then zero again for the next launch.
KVANT_DEVICE bool ArriveLast(const DecodeParams& params, uint32_t item, uint32_t num_slots) {
  __threadfence();
  const bool last = atomicInc(params.arrived + item, num_slots - 1) == num_slots - 1;
  __threadfence();
  return last;
}

/// What the run's end asks for. `ring` is the warp's own and idle when the end is kShared. Nobody is told of a part in
/// its slot before the block ends: amid the copies of twelve warps a fence takes 10 to 30 µs.
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
      float* stats =
          to_shared ? shared.Stats(head) : params.partial_stats + (static_cast<size_t>(run.slot) * 8 + head) * 2;
      stats[0] = state.reference[j];
      stats[1] = j == 0 ? sum.x : sum.y;
    }
  }
}

/// What a block merges at its end, asked for at its beginning: then nobody waits for it.
template <int kWarps>
struct alignas(16) BlockEnd {
  static constexpr uint32_t kMost = 2 * kWarps;
  DecodeEnd ends[kMost];
  uint32_t last;  ///< bit g: the part of group g was the last of its item
  uint32_t unused[3];

  KVANT_DEVICE void Load(const DecodeParams& params) {
    constexpr uint32_t kVectors = sizeof(ends) / 16;
    const auto* src = reinterpret_cast<const uint4*>(params.ends + blockIdx.x * kMost);
    if (threadIdx.x < kVectors) CopyAsync16(SharedAddress(ends) + threadIdx.x * 16, src + threadIdx.x);
    CommitCopies();
  }
  KVANT_DEVICE uint32_t Count() const {
    uint32_t count = 0;
    while (count < kMost && ends[count].group.item != DecodeRun::kNone) ++count;
    return count;
  }
};

/// Bit number of the n-th set bit.
KVANT_DEVICE uint32_t SetBit(uint32_t bits, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) bits &= bits - 1;
  return static_cast<uint32_t>(__ffs(static_cast<int>(bits))) - 1;
}

/// One head of a group out of the rings: into the output, or into the item's slot.
template <int kHeadDim>
KVANT_DEVICE void MergeShared(const DecodeParams& params, const DecodeEnd& end, uint32_t head, uint32_t rings,
                              uint32_t ring_bytes, uint32_t lane) {
  HeadMerge<kHeadDim> merge;
  // Lane i knows the warp of the group's i-th part.
  const uint32_t parts = __popc(end.group.warps);
  const uint32_t warp_of_part = lane < parts ? SetBit(end.group.warps, lane) : 0;
  merge.template Add<kHeadDim == 256 ? 3 : 6>(
      parts, lane,
      [&](uint32_t) {
        const SharedPart<kHeadDim> part{rings + warp_of_part * ring_bytes};
        return *reinterpret_cast<const float2*>(part.Stats(head));
      },
      [&](uint32_t i, uint32_t v) {
        const SharedPart<kHeadDim> part{rings + __shfl_sync(~0U, warp_of_part, i) * ring_bytes};
        return reinterpret_cast<const float4*>(part.Row(head))[v];
      });
  if (end.group.slot == DecodeRun::kNone) {
    const DecodeItem& item = end.item;
    merge.Write(OutputRow(params, item.sequence, item.first_q_head + head, kHeadDim), 1.0F / merge.sum, lane);
    return;
  }
  const size_t row = static_cast<size_t>(end.group.slot) * 8 + head;
  merge.Write(params.partial_out + row * kHeadDim, 1.0F, lane);
  if (lane == 0) {
    params.partial_stats[2 * row] = merge.reference;
    params.partial_stats[2 * row + 1] = merge.sum;
  }
}

/// The end of a block: its warps' last parts, all groups at once, since a block between two items is who both wait for;
/// then the slots of the items whose last part this was.
template <int kHeadDim, int kWarps>
KVANT_DEVICE void MergeGroups(const DecodeParams& params, BlockEnd<kWarps>& block_end, uint32_t rings,
                              uint32_t ring_bytes) {
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  WaitForCopies<0>();  // of the ends
  __syncthreads();
  const uint32_t count = block_end.Count();
  if (count == 0) return;
#pragma unroll 1
  for (uint32_t task = warp; task < 8 * count; task += kWarps) {
    const DecodeEnd& end = block_end.ends[task / 8];
    if (end.group.warps != 0 && task % 8 < end.item.num_q_heads)
      MergeShared<kHeadDim>(params, end, task % 8, rings, ring_bytes, lane);
  }
  __syncthreads();
  if (warp == 0) {
    bool last = false;
    if (lane < count && block_end.ends[lane].group.slot != DecodeRun::kNone) {
      last = ArriveLast(params, block_end.ends[lane].group.item, block_end.ends[lane].item.num_slots);
    }
    const uint32_t all = __ballot_sync(~0U, last);
    if (lane == 0) block_end.last = all;
  }
  __syncthreads();
  const uint32_t last = block_end.last;  // whoever arrived last has seen all parts, and the barrier hands that on
  if (last == 0) return;
#pragma unroll 1
  for (uint32_t task = warp; task < 8 * count; task += kWarps) {
    const DecodeItem& item = block_end.ends[task / 8].item;
    if ((last >> (task / 8) & 1U) != 0 && task % 8 < item.num_q_heads) {
      MergeSlots<kHeadDim>(params, item, task % 8, lane);
    }
  }
}

}  // namespace kvant::kernels::cuda
