#include "kvant/kernels/cuda/pack.h"

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/status.h"

namespace kvant::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kTokens = kPairPageTokens;

/// What turns a number into its code: level = (x - zero) · inverse, rounded by the group's rule, 0…most.
struct alignas(16) GroupCode {
  float inverse;
  float zero;
  int most;
  bool cells;  ///< mid-rise: the cell it lies in; else the nearest level

  static KVANT_DEVICE GroupCode Of(const DeviceGroup& group, int bits, bool is_mid_rise) {
    return {group.inverse, group.zero_value, quant::AffineMax(bits), is_mid_rise};
  }

  /// Of a page whose groups all have cells, or of any.
  template <bool kAllCells>
  KVANT_DEVICE uint32_t Encode(float x) const {
    const float level = __fmul_rn(__fsub_rn(x, zero), inverse);
    int code = __float2int_rd(__fadd_rn(level, 0.5F));
    if (!kAllCells && !cells) code = __float2int_rn(level);
    return static_cast<uint32_t>(min(max(code, 0), most));
  }
};

/// One page of one KV head on its way to codes: keys, later values, as they are; the parameters of their groups.
template <int kHeadDim>
struct PackMemory {
  static constexpr int kPitch = kHeadDim + 8;  // halves; rows on different banks
  __half rows[kTokens][kPitch];
  PairDeviceMap map;
  GroupCode keys[kHeadDim];  ///< by channel
  GroupCode values[kTokens];
  float low[kThreads / (kHeadDim / 2) + 1][kHeadDim];
  float high[kThreads / (kHeadDim / 2) + 1][kHeadDim];
};

template <int kHeadDim>
KVANT_DEVICE void LoadRows(PackMemory<kHeadDim>& memory, const __half* src, size_t row_stride) {
  constexpr int kVectors = kHeadDim / 8;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < kTokens * kVectors; i += kThreads) {
    const uint32_t token = i / kVectors;
    const uint32_t at = i % kVectors * 8;
    *reinterpret_cast<uint4*>(&memory.rows[token][at]) =
        __ldcs(reinterpret_cast<const uint4*>(src + token * row_stride + at));
  }
}

KVANT_DEVICE bool HasCells(codec::PairRule rule, int bits) { return rule == codec::PairRule::kMidRise || bits == 1; }
KVANT_DEVICE DeviceGroup Fit(codec::PairRule rule, int bits, float low, float high) {
  return HasCells(rule, bits) ? FitMidRise(bits, low, high) : FitAffine(bits, low, high);
}

/// Channel of a kernel position: PairDeviceMap::order read the other way.
KVANT_DEVICE uint32_t ChannelAt(const PairDeviceMap& map, uint32_t position) {
  const uint32_t column = position % 16;
  return map.order[column % 8 / 2][position / 16] >> (8 * (column % 2 + column / 8 * 2)) & 0xFFU;
}

/// Range of every channel over the page, scale and zero into the record.
template <int kHeadDim>
KVANT_DEVICE void FitKeys(PackMemory<kHeadDim>& memory, codec::PairRule rule, std::byte* record) {
  const PairDeviceMap& map = memory.map;
  constexpr int kPairs = kHeadDim / 2;
  constexpr int kParts = kThreads / kPairs;
  const uint32_t pair = threadIdx.x % kPairs;
  const uint32_t part = threadIdx.x / kPairs;
  float2 low = __half22float2(*reinterpret_cast<const __half2*>(&memory.rows[part * (kTokens / kParts)][2 * pair]));
  float2 high = low;
  for (uint32_t t = 1; t < kTokens / kParts; ++t) {
    const float2 x =
        __half22float2(*reinterpret_cast<const __half2*>(&memory.rows[part * (kTokens / kParts) + t][2 * pair]));
    low = make_float2(fminf(low.x, x.x), fminf(low.y, x.y));
    high = make_float2(fmaxf(high.x, x.x), fmaxf(high.y, x.y));
  }
  *reinterpret_cast<float2*>(&memory.low[part][2 * pair]) = low;
  *reinterpret_cast<float2*>(&memory.high[part][2 * pair]) = high;
  __syncthreads();
  auto* scales = reinterpret_cast<__half*>(record + map.tail);
  for (uint32_t position = threadIdx.x; position < kHeadDim; position += kThreads) {
    const uint32_t channel = ChannelAt(map, position);
    float least = memory.low[0][channel];
    float most = memory.high[0][channel];
    for (int p = 1; p < kParts; ++p) {
      least = fminf(least, memory.low[p][channel]);
      most = fmaxf(most, memory.high[p][channel]);
    }
    // A channel keeps its own width inside a wider field.
    const int bits = static_cast<int>(map.width[channel]);
    const DeviceGroup group = Fit(rule, bits, least, most);
    const uint32_t at = PlaceOfKeyScale(position);
    scales[at] = group.scale;
    scales[kHeadDim + at] = group.zero;
    memory.keys[channel] = GroupCode::Of(group, bits, HasCells(rule, bits));
  }
  __syncthreads();
}

/// Every key word once: its fields are codes of one token and the channels of the steps of its column.
template <bool kAllCells, int kHeadDim>
KVANT_DEVICE void PackKeys(const PackMemory<kHeadDim>& memory, std::byte* record) {
  const PairDeviceMap& map = memory.map;
  const uint32_t words = kTokens / kTileTokens * map.key_columns * 64;
  for (uint32_t i = threadIdx.x; i < words; i += kThreads) {
    const uint32_t upper = i % 2;
    const uint32_t lane = i / 2 % 32;
    const uint32_t column = i / 64 % map.key_columns;
    const uint32_t tile = i / 64 / map.key_columns;
    const __half* row = memory.rows[tile * kTileTokens + lane / 4 + 8 * upper];
    uint32_t word = 0;
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const PairDeviceMap::Step& s = map.steps[step];
      if (s.offset != column * 256) continue;
      const uint32_t channels = map.order[lane % 4][step];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t channel = channels >> (8 * j) & 0xFFU;
        const uint32_t code = memory.keys[channel].template Encode<kAllCells>(__half2float(row[channel]));
        word |= code << (16 * (j % 2) + s.position + j / 2 * s.width);
      }
    }
    const uint32_t in_tile = (column * 32 + lane) * 2 + upper;
    const uint32_t key_tile = map.key_columns * 256;
    *reinterpret_cast<uint32_t*>(record + tile / 2 * map.block_bytes + tile % 2 * key_tile + 4 * in_tile) = word;
  }
}

/// Range of every token over its channels; a warp takes one token at a time.
template <int kHeadDim>
KVANT_DEVICE void FitValues(PackMemory<kHeadDim>& memory, codec::PairRule rule, int bits, std::byte* record) {
  auto* scales = reinterpret_cast<__half*>(record + memory.map.tail + 4 * kHeadDim);
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t token = threadIdx.x / 32; token < kTokens; token += kThreads / 32) {
    float low = 65504.0F;
    float high = -65504.0F;
    for (uint32_t c = 2 * lane; c < kHeadDim; c += 64) {
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&memory.rows[token][c]));
      low = fminf(low, fminf(x.x, x.y));
      high = fmaxf(high, fmaxf(x.x, x.y));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      low = fminf(low, __shfl_xor_sync(~0U, low, distance));
      high = fmaxf(high, __shfl_xor_sync(~0U, high, distance));
    }
    const DeviceGroup group = Fit(rule, bits, low, high);
    if (lane == 0) {
      scales[token] = group.scale;
      scales[kTokens + token] = group.zero;
      memory.values[token] = GroupCode::Of(group, bits, HasCells(rule, bits));
    }
  }
  __syncthreads();
}

/// One plane of the values: kBits bits of every code from bit kLow on; `offset` is where it begins in a block's values.
template <bool kAllCells, int kBits, int kLow, int kHeadDim>
KVANT_DEVICE void PackValues(const PackMemory<kHeadDim>& memory, uint32_t offset, std::byte* record) {
  constexpr uint32_t kFields = 16 / kBits;
  constexpr uint32_t kSteps = kHeadDim / 16;
  constexpr uint32_t kGroups = ValueGroupsOfPlane(kHeadDim, kBits);
  for (uint32_t i = threadIdx.x; i < kTokens / 32 * kGroups * 128; i += kThreads) {
    const uint32_t block = i / (kGroups * 128);
    const uint32_t group = i / 128 % kGroups;
    const uint32_t lane = i / 4 % 32;
    const uint32_t row = lane / 4 + 8 * (i % 2);
    uint32_t word = 0;
#pragma unroll
    for (uint32_t f = 0; f < kFields; ++f) {
      const uint32_t field = group * kFields + f;
      if (field >= 2 * kSteps) break;  // a block of two tiles may not fill its last words
      const uint32_t channel = field % kSteps * 16 + row;
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t token = block * 32 + field / kSteps * 16 + lane % 4 * 2 + half + i % 4 / 2 * 8;
        const uint32_t code = memory.values[token].template Encode<kAllCells>(__half2float(memory.rows[token][channel]));
        word |= (code >> kLow & ((1U << kBits) - 1U)) << (16 * half + f * kBits);
      }
    }
    const uint32_t values = 2 * memory.map.key_columns * 256 + offset;
    *reinterpret_cast<uint32_t*>(record + block * memory.map.block_bytes + values + (group * 128 + i % 128) * 4) = word;
  }
}

template <int kHeadDim, int kValueBits, bool kAllCells>
__global__ void __launch_bounds__(kThreads) PackPairKernel(const PairPack pack) {
  PackMemory<kHeadDim>& memory = Shared<PackMemory<kHeadDim>>(0);
  const PairPackJob job = pack.jobs[blockIdx.x];
  const uint32_t head = blockIdx.y;
  const auto* map = reinterpret_cast<const uint4*>(pack.maps + job.map * pack.num_kv_heads + head);
  for (uint32_t i = threadIdx.x; i < sizeof(PairDeviceMap) / 16; i += kThreads) {
    reinterpret_cast<uint4*>(&memory.map)[i] = __ldg(map + i);
  }
  const size_t row_stride = size_t{pack.num_kv_heads} * kHeadDim;
  const size_t first = job.first_row * row_stride + size_t{head} * kHeadDim;
  std::byte* record = static_cast<std::byte*>(pack.pool) + job.page * pack.page_bytes + head * pack.record_bytes;
  LoadRows(memory, static_cast<const __half*>(pack.keys) + first, row_stride);
  __syncthreads();
  FitKeys(memory, pack.format.key_rule, record);
  PackKeys<kAllCells>(memory, record);
  __syncthreads();
  LoadRows(memory, static_cast<const __half*>(pack.values) + first, row_stride);
  __syncthreads();
  FitValues(memory, pack.format.value_rule, kValueBits, record);
  if constexpr (kValueBits == 3) {
    PackValues<kAllCells, 1, 0>(memory, 0, record);
    PackValues<kAllCells, 2, 1>(memory, 512 * ValueGroupsOfPlane(kHeadDim, 1), record);
  } else {
    PackValues<kAllCells, kValueBits, 0>(memory, 0, record);
  }
}

template <int kHeadDim, int kValueBits, bool kAllCells>
Status Launch(const PairPack& pack, cudaStream_t stream) {
  auto* kernel = PackPairKernel<kHeadDim, kValueBits, kAllCells>;
  constexpr int kShared = static_cast<int>(sizeof(PackMemory<kHeadDim>));
  KVANT_RETURN_IF_ERROR(
      StatusOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "pack pair pages"));
  kernel<<<dim3(pack.num_jobs, pack.num_kv_heads), kThreads, kShared, stream>>>(pack);
  return StatusOf(cudaGetLastError(), "pack pair pages");
}

template <int kHeadDim>
Status LaunchFor(const PairPack& pack, cudaStream_t stream) {
  const bool cells =
      pack.format.key_rule == codec::PairRule::kMidRise && pack.format.value_rule == codec::PairRule::kMidRise;
  if (pack.format.value_bits == 2) {
    return cells ? Launch<kHeadDim, 2, true>(pack, stream) : Launch<kHeadDim, 2, false>(pack, stream);
  }
  if (pack.format.value_bits == 3) {
    return cells ? Launch<kHeadDim, 3, true>(pack, stream) : Launch<kHeadDim, 3, false>(pack, stream);
  }
  return cells ? Launch<kHeadDim, 4, true>(pack, stream) : Launch<kHeadDim, 4, false>(pack, stream);
}

Status CheckPack(const PairPack& pack) {
  const codec::PairFormat& format = pack.format;
  if (format.page_tokens != kPairPageTokens || format.value_group != format.head_dim) {
    return {StatusCode::kInvalidArgument, "the CUDA packer has pages of 128 tokens and one value group a token"};
  }
  if (format.value_bits < 2 || format.value_bits > 4) {
    return {StatusCode::kInvalidArgument, "value bits: " + std::to_string(format.value_bits) + " is not supported"};
  }
  if (format.head_dim != 64 && format.head_dim != 128 && format.head_dim != 256) {
    return {StatusCode::kModelUnsupported,
            "the CUDA kernels have head dimensions 64, 128 and 256, not " + std::to_string(format.head_dim)};
  }
  return OkStatus();
}

}  // namespace

Status PackPairPages(const PairPack& pack, Stream stream) {
  KVANT_RETURN_IF_ERROR(CheckPack(pack));
  if (pack.num_jobs == 0) {
    return OkStatus();
  }
  switch (pack.format.head_dim) {
    case 64: return LaunchFor<64>(pack, AsStream(stream));
    case 128: return LaunchFor<128>(pack, AsStream(stream));
    default: return LaunchFor<256>(pack, AsStream(stream));
  }
}

}  // namespace kvant::kernels::cuda
