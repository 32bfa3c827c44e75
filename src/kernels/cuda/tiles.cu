#include <cuda_runtime.h>

#include <string>
#include <type_traits>

#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/pack.h"

namespace kvant::kernels::cuda {
namespace {

using codec::TokenCodec;
constexpr int kThreads = 128;

/// Keys or values of one tile and KV head, and what turns each row into codes.
template <int kHeadDim>
struct TileMemory {
  __half rows[kTileTokens][kHeadDim + 8];
  DeviceGroup groups[kTileTokens];
};

/// Rows of the job's tokens at their slots; keys are equalized on the way in.
template <int kHeadDim>
KVANT_DEVICE void LoadTile(TileMemory<kHeadDim>& memory, const TileStoreJob& job, const __half* src, size_t row_stride,
                           const __half* equalization) {
  for (uint32_t i = threadIdx.x; i < kTileTokens * kHeadDim; i += kThreads) {
    const uint32_t slot = i / kHeadDim;
    const uint32_t channel = i % kHeadDim;
    const bool given = slot >= job.first_slot && slot < job.first_slot + job.num_tokens;
    __half x = given ? src[(slot - job.first_slot) * row_stride + channel] : __ushort_as_half(0);
    if (equalization != nullptr) {
      const float shifted = __fsub_rn(__half2float(x), __half2float(equalization[channel]));
      const float value = __fdiv_rn(shifted, __half2float(equalization[kHeadDim + channel]));
      x = __float2half_rn(fminf(fmaxf(value, -65504.0F), 65504.0F));
    }
    memory.rows[slot][channel] = x;
  }
}

/// Scale and zero of every row, by a warp each; stored for the job's slots only.
template <TokenCodec kCodec, int kHeadDim>
KVANT_DEVICE void FitTile(TileMemory<kHeadDim>& memory, const TileStoreJob& job, __half* scales) {
  constexpr int kBits = codec::CodeBits(kCodec);
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t slot = threadIdx.x / 32; slot < kTileTokens; slot += kThreads / 32) {
    float low = 65504.0F;
    float high = -65504.0F;
    for (uint32_t c = lane; c < kHeadDim; c += 32) {
      const float x = __half2float(memory.rows[slot][c]);
      low = fminf(low, x);
      high = fmaxf(high, x);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      low = fminf(low, __shfl_xor_sync(~0U, low, distance));
      high = fmaxf(high, __shfl_xor_sync(~0U, high, distance));
    }
    const DeviceGroup group = codec::HasZero(kCodec) ? FitAffine(kBits, low, high) : FitSymmetric(kBits, low, high);
    if (lane != 0) continue;
    memory.groups[slot] = group;
    const bool given = slot >= job.first_slot && slot < job.first_slot + job.num_tokens;
    const bool stale = job.first_slot == 0 && !given;
    if (given || stale) scales[slot] = given ? group.scale : __ushort_as_half(0);
    if (codec::HasZero(kCodec) && (given || stale)) scales[2 * kTileTokens + slot] = given ? group.zero : __ushort_as_half(0);
  }
}

template <TokenCodec kCodec, int kHeadDim>
KVANT_DEVICE uint32_t CodeOf(const TileMemory<kHeadDim>& memory, uint32_t token, uint32_t channel) {
  const __half x = memory.rows[token][channel];
  if constexpr (kCodec == TokenCodec::kFp16) {
    return __half_as_ushort(x);
  } else if constexpr (codec::HasZero(kCodec)) {
    return EncodeAffine(codec::CodeBits(kCodec), memory.groups[token], __half2float(x));
  } else {
    return EncodeSymmetric(codec::CodeBits(kCodec), memory.groups[token], __half2float(x));
  }
}

/// Every word of the keys or values once: PlaceOfTokenCode read the other way. Bits of slots that are neither given nor
/// stale stay.
template <TokenCodec kCodec, bool kIsKey, int kHeadDim>
KVANT_DEVICE void WriteTile(const TileMemory<kHeadDim>& memory, const TileStoreJob& job, uint32_t* words) {
  constexpr uint32_t kBits = codec::CodeBits(kCodec);
  constexpr uint32_t kCodes = 32 / kBits;
  for (uint32_t i = threadIdx.x; i < TokenTileCodeBytes(kCodec, kHeadDim) / 4; i += kThreads) {
    const uint32_t lane = i / 4 % 32;
    uint32_t word = 0;
    uint32_t written = 0;
#pragma unroll
    for (uint32_t k = 0; k < kCodes; ++k) {
      const uint32_t half = k % 2;
      uint32_t step = i / 128;
      uint32_t upper = i % 2;
      uint32_t block = i % 4 / 2;  // fp16: the register
      if constexpr (kBits == 8) {
        step = i / 128 * 2 + i % 4 / 2;
        block = k / 2;
      } else if constexpr (kBits == 4) {
        step = i / 128 * 4 + i % 4 / 2 * 2 + k / 4;
        block = k / 2 % 2;
      }
      const uint32_t row = lane / 4 + 8 * upper;
      const uint32_t column = lane % 4 * 2 + half + 8 * block;
      const uint32_t token = kIsKey ? row : column;
      const uint32_t channel = 16 * step + (kIsKey ? column : row);
      const bool given = token >= job.first_slot && token < job.first_slot + job.num_tokens;
      const uint32_t bit = PlaceOfTokenCode(kCodec, kIsKey, token, channel).bit;
      const uint32_t mask = kBits == 16 ? 0xFFFFU << bit : ((1U << kBits) - 1U) << bit;
      if (given || job.first_slot == 0) written |= mask;
      if (given) word |= CodeOf<kCodec>(memory, token, channel) << bit;
    }
    if (written == 0) continue;
    words[i] = written == ~0U ? word : (words[i] & ~written) | word;
  }
}

template <TokenCodec kCodec, int kHeadDim>
__global__ void __launch_bounds__(kThreads) StoreTilesKernel(const TileStore store) {
  __shared__ TileMemory<kHeadDim> memory;
  const TileStoreJob job = store.jobs[blockIdx.x];
  const uint32_t head = blockIdx.y;
  const size_t row_stride = size_t{store.num_kv_heads} * kHeadDim;
  const size_t first = job.first_row * row_stride + size_t{head} * kHeadDim;
  std::byte* tile = static_cast<std::byte*>(store.pool) + job.page * store.page_bytes + head * store.record_bytes +
                    job.tile * TokenTileBytes(kCodec, kHeadDim);
  auto* scales = reinterpret_cast<__half*>(tile + TokenTileScales(kCodec, kHeadDim));
  const __half* equalization = nullptr;
  if (kCodec != TokenCodec::kFp16 && store.equalization != nullptr && job.map != 0xFFFFFFFFU) {
    equalization = static_cast<const __half*>(store.equalization) +
                   (static_cast<size_t>(job.map) * store.num_kv_heads + head) * 2 * kHeadDim;
  }
  LoadTile(memory, job, static_cast<const __half*>(store.keys) + first, row_stride, equalization);
  __syncthreads();
  if constexpr (kCodec != TokenCodec::kFp16) FitTile<kCodec>(memory, job, scales);
  __syncthreads();
  WriteTile<kCodec, true>(memory, job, reinterpret_cast<uint32_t*>(tile));
  __syncthreads();
  LoadTile(memory, job, static_cast<const __half*>(store.values) + first, row_stride, nullptr);
  __syncthreads();
  if constexpr (kCodec != TokenCodec::kFp16) FitTile<kCodec>(memory, job, scales + kTileTokens);
  __syncthreads();
  WriteTile<kCodec, false>(memory, job, reinterpret_cast<uint32_t*>(tile + TokenTileCodeBytes(kCodec, kHeadDim)));
}

template <TokenCodec kCodec>
Status LaunchFor(const TileStore& store, cudaStream_t stream) {
  const dim3 grid(store.num_jobs, store.num_kv_heads);
  switch (store.head_dim) {
    case 64: StoreTilesKernel<kCodec, 64><<<grid, kThreads, 0, stream>>>(store); break;
    case 128: StoreTilesKernel<kCodec, 128><<<grid, kThreads, 0, stream>>>(store); break;
    case 256: StoreTilesKernel<kCodec, 256><<<grid, kThreads, 0, stream>>>(store); break;
    default:
      return {StatusCode::kModelUnsupported, "the CUDA kernels have head dimensions 64, 128 and 256, not " +
                                                 std::to_string(store.head_dim)};
  }
  return StatusOf(cudaGetLastError(), "store tiles");
}

}  // namespace

Status StoreTiles(const TileStore& store, Stream stream) {
  if (store.num_jobs == 0) {
    return OkStatus();
  }
  cudaStream_t s = AsStream(stream);
  switch (store.codec) {
    case TokenCodec::kFp16: return LaunchFor<TokenCodec::kFp16>(store, s);
    case TokenCodec::kInt8: return LaunchFor<TokenCodec::kInt8>(store, s);
    case TokenCodec::kInt4: return LaunchFor<TokenCodec::kInt4>(store, s);
    case TokenCodec::kInt4Affine: return LaunchFor<TokenCodec::kInt4Affine>(store, s);
  }
  return {StatusCode::kPrecisionUnsupported, "a token codec that the CUDA kernels do not have"};
}

}  // namespace kvant::kernels::cuda
