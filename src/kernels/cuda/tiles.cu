#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/pack.h"

namespace kvant::kernels::cuda {
namespace {

using codec::TokenCodec;
constexpr uint32_t kWarps = 4;

/// Keys or values of one tile, KV head and warp.
template <TokenCodec kCodec, int kHeadDim>
struct TileMemory {
  __half rows[kTileTokens][kHeadDim + 8];
  RowCode<kCodec> codes[kTileTokens];
};

/// Division as IEEE has it, for a divisor whose reciprocal is known to the last bit (Markstein).
KVANT_DEVICE float Divide(float a, float b, float reciprocal) {
  const float q = __fmul_rn(a, reciprocal);
  return __fmaf_rn(__fmaf_rn(-b, q, a), reciprocal, q);
}

/// codec::EqualizeRow of eight channels.
struct Equalizer {
  float mean[8];
  float scale[8];
  float reciprocal[8];

  KVANT_DEVICE Equalizer(const __half* means, const __half* scales) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      mean[c] = __half2float(means[c]);
      scale[c] = __half2float(scales[c]);
      reciprocal[c] = __fdiv_rn(1.0F, scale[c]);
    }
  }
  KVANT_DEVICE uint4 operator()(uint4 x) const {
    uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(AsHalf2(words[i]));
      words[i] = PackHalf2(One(pair.x, 2 * i), One(pair.y, 2 * i + 1));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

 private:
  KVANT_DEVICE float One(float x, int c) const {
    return fminf(fmaxf(Divide(__fsub_rn(x, mean[c]), scale[c], reciprocal[c]), -65504.0F), 65504.0F);
  }
};

KVANT_DEVICE bool Given(const TileStoreJob& job, uint32_t slot) {
  return slot >= job.first_slot && slot < uint32_t{job.first_slot} + job.num_tokens;
}

/// Rows of the job's tokens at their slots, zeros elsewhere; keys are equalized on the way in.
template <TokenCodec kCodec, int kHeadDim>
KVANT_DEVICE void LoadTile(TileMemory<kCodec, kHeadDim>& memory, const TileStoreJob& job, const __half* src,
                           size_t row_stride, const __half* equalization, uint32_t lane) {
  constexpr uint32_t kVectors = kHeadDim / 8;
  constexpr uint32_t kLoads = kTileTokens * kVectors / 32;
  uint4 x[kLoads];
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t at = i * 32 + lane;
    const uint32_t slot = at / kVectors;
    x[i] = make_uint4(0, 0, 0, 0);
    if (Given(job, slot)) {
      x[i] = __ldcs(reinterpret_cast<const uint4*>(src + (slot - job.first_slot) * row_stride) + at % kVectors);
    }
  }
  if (equalization != nullptr) {
    // A lane has the same channels in all its rows.
    const Equalizer equalize(equalization + lane % kVectors * 8, equalization + kHeadDim + lane % kVectors * 8);
#pragma unroll
    for (uint4& word : x) word = equalize(word);
  }
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t at = i * 32 + lane;
    *reinterpret_cast<uint4*>(&memory.rows[at / kVectors][at % kVectors * 8]) = x[i];
  }
  __syncwarp();
}

/// Two lanes fit one row. Scales and zeros are stored for the job's slots, and cleared behind them.
template <TokenCodec kCodec, int kHeadDim>
KVANT_DEVICE void FitTile(TileMemory<kCodec, kHeadDim>& memory, const TileStoreJob& job, __half* scales,
                          uint32_t lane) {
  constexpr int kBits = codec::CodeBits(kCodec);
  const uint32_t slot = lane / 2;
  __half2 low = AsHalf2(0x7BFF7BFFU);
  __half2 high = AsHalf2(0xFBFFFBFFU);
#pragma unroll
  for (uint32_t c = 0; c < kHeadDim / 2; c += 8) {
    const uint4 w = *reinterpret_cast<const uint4*>(&memory.rows[slot][2 * c + lane % 2 * 8]);
    low = __hmin2(__hmin2(low, __hmin2(AsHalf2(w.x), AsHalf2(w.y))), __hmin2(AsHalf2(w.z), AsHalf2(w.w)));
    high = __hmax2(__hmax2(high, __hmax2(AsHalf2(w.x), AsHalf2(w.y))), __hmax2(AsHalf2(w.z), AsHalf2(w.w)));
  }
  low = __hmin2(low, __shfl_xor_sync(~0U, low, 1));
  high = __hmax2(high, __shfl_xor_sync(~0U, high, 1));
  const float least = __half2float(__hmin(__low2half(low), __high2half(low)));
  const float most = __half2float(__hmax(__low2half(high), __high2half(high)));
  const DeviceGroup group = codec::HasZero(kCodec) ? FitAffine(kBits, least, most) : FitSymmetric(kBits, least, most);
  if (lane % 2 == 0) {
    memory.codes[slot] = {group.inverse, group.zero_value};
    const bool given = Given(job, slot);
    if (given || job.first_slot == 0) {
      scales[slot] = given ? group.scale : __ushort_as_half(0);
      if (codec::HasZero(kCodec)) scales[2 * kTileTokens + slot] = given ? group.zero : __ushort_as_half(0);
    }
  }
  __syncwarp();
}

/// Who a lane's codes belong to: the token of (upper, block, half) of any 16 × 16 tile.
template <bool kIsKey>
KVANT_DEVICE uint32_t TokenOf(uint32_t upper, uint32_t block, uint32_t half, uint32_t lane) {
  return kIsKey ? lane / 4 + 8 * upper : lane % 4 * 2 + half + 8 * block;
}

/// Bits of a lane's four words (of any 16-byte unit) that belong to the job's tokens.
template <TokenCodec kCodec, bool kIsKey>
KVANT_DEVICE uint4 GivenBits(const TileStoreJob& job, uint32_t lane) {
  constexpr uint32_t kBits = codec::CodeBits(kCodec);
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t upper = i % 2;
    const uint32_t block = i / 2 % 2;
    const uint32_t half = i / 4;
    if (!Given(job, TokenOf<kIsKey>(upper, block, half, lane))) continue;
    if (kBits == 16) {
      words[upper + 2 * block] |= 0xFFFFU << (16 * half);
    } else {
      words[upper] |= 0xFFU << (16 * half + 8 * block);
      words[upper + 2] |= 0xFFU << (16 * half + 8 * block);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

KVANT_DEVICE void Merge(uint4* dst, uint4 w, uint4 given, bool keep) {
  uint4 old = make_uint4(0, 0, 0, 0);
  if (keep) old = *dst;
  *dst = make_uint4((w.x & given.x) | (old.x & ~given.x), (w.y & given.y) | (old.y & ~given.y),
                    (w.z & given.z) | (old.z & ~given.z), (w.w & given.w) | (old.w & ~given.w));
}

/// Codes of one step as [upper + 2 · block] words of two.
template <TokenCodec kCodec, bool kIsKey, int kHeadDim>
KVANT_DEVICE void EncodeStep(const TileMemory<kCodec, kHeadDim>& memory, uint32_t step, uint32_t lane,
                             uint32_t (&codes)[4]) {
  // Matrix m of the load is [upper + 2 · block]; rows are tokens either way.
  const uint32_t upper = lane / 8 % 2;
  const uint32_t block = lane / 16;
  const uint32_t token = lane % 8 + 8 * (kIsKey ? upper : block);
  const uint32_t channel = 16 * step + 8 * (kIsKey ? block : upper);
  const uint32_t at = SharedAddress(&memory.rows[token][channel]);
  const uint4 tile = kIsKey ? LoadMatrices(at) : LoadTransposed(at);
  codes[0] = tile.x;
  codes[1] = tile.y;
  codes[2] = tile.z;
  codes[3] = tile.w;
  if constexpr (kCodec != TokenCodec::kFp16) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float2 x = __half22float2(AsHalf2(codes[i]));
      const uint32_t low = memory.codes[TokenOf<kIsKey>(i % 2, i / 2, 0, lane)].Encode(x.x);
      const uint32_t high = memory.codes[TokenOf<kIsKey>(i % 2, i / 2, 1, lane)].Encode(x.y);
      codes[i] = __byte_perm(low, high, 0x5410);
    }
  }
}

/// Every 16-byte unit of the keys or values once: PlaceOfTokenCode read the other way.
template <TokenCodec kCodec, bool kIsKey, int kHeadDim>
KVANT_DEVICE void WriteTile(const TileMemory<kCodec, kHeadDim>& memory, const TileStoreJob& job, std::byte* tile,
                            uint32_t lane) {
  constexpr uint32_t kBits = codec::CodeBits(kCodec);
  constexpr uint32_t kStepsAUnit = 16 / kBits;
  const uint4 given = GivenBits<kCodec, kIsKey>(job, lane);
  auto* dst = reinterpret_cast<uint4*>(tile) + lane;
#pragma unroll
  for (uint32_t first = 0; first < kHeadDim / 16; first += kStepsAUnit) {
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < kStepsAUnit; ++k) {
      uint32_t codes[4];
      EncodeStep<kCodec, kIsKey>(memory, first + k, lane, codes);
      if constexpr (kBits == 16) {
        for (int i = 0; i < 4; ++i) words[i] = codes[i];
      } else {
        // int8: a step a pair of words; int4: two steps, four bits apart.
        constexpr uint32_t kStepsAWord = 8 / kBits;
        const uint32_t pair = k / kStepsAWord * 2;
        const uint32_t shift = k % kStepsAWord * 4;
        words[pair] |= (codes[0] | codes[2] << 8) << shift;
        words[pair + 1] |= (codes[1] | codes[3] << 8) << shift;
      }
    }
    Merge(dst + first / kStepsAUnit * 32, make_uint4(words[0], words[1], words[2], words[3]), given,
          job.first_slot != 0);
  }
}

template <TokenCodec kCodec, bool kIsKey, int kHeadDim>
KVANT_DEVICE void StoreSide(TileMemory<kCodec, kHeadDim>& memory, const TileStore& store, const TileStoreJob& job,
                            uint32_t head, std::byte* tile, uint32_t lane) {
  const size_t row_stride = size_t{store.num_kv_heads} * kHeadDim;
  const size_t first = job.first_row * row_stride + size_t{head} * kHeadDim;
  const __half* equalization = nullptr;
  if (kIsKey && kCodec != TokenCodec::kFp16 && store.equalization != nullptr && job.map != 0xFFFFFFFFU) {
    equalization = static_cast<const __half*>(store.equalization) +
                   (static_cast<size_t>(job.map) * store.num_kv_heads + head) * 2 * kHeadDim;
  }
  LoadTile(memory, job, static_cast<const __half*>(kIsKey ? store.keys : store.values) + first, row_stride,
           equalization, lane);
  auto* scales = reinterpret_cast<__half*>(tile + TokenTileScales(kCodec, kHeadDim)) + (kIsKey ? 0 : kTileTokens);
  if constexpr (kCodec != TokenCodec::kFp16) FitTile(memory, job, scales, lane);
  WriteTile<kCodec, kIsKey>(memory, job, tile + (kIsKey ? 0 : TokenTileCodeBytes(kCodec, kHeadDim)), lane);
}

/// A warp stores the keys or the values of one job and KV head.
template <TokenCodec kCodec, int kHeadDim>
__global__ void __launch_bounds__(32 * kWarps) StoreTilesKernel(const TileStore store) {
  __shared__ TileMemory<kCodec, kHeadDim> memory[kWarps];
  const uint32_t warp = threadIdx.x / 32;
  const uint64_t work = uint64_t{blockIdx.x} * kWarps + warp;
  const uint32_t sides = 2 * store.num_kv_heads;
  if (work >= uint64_t{store.num_jobs} * sides) return;
  const TileStoreJob job = store.jobs[work / sides];
  const auto side = static_cast<uint32_t>(work % sides);
  const uint32_t head = side % store.num_kv_heads;
  std::byte* tile = static_cast<std::byte*>(store.pool) + job.page * store.page_bytes + head * store.record_bytes +
                    job.tile * TokenTileBytes(kCodec, kHeadDim);
  if (side < store.num_kv_heads) {
    StoreSide<kCodec, true>(memory[warp], store, job, head, tile, threadIdx.x % 32);
  } else {
    StoreSide<kCodec, false>(memory[warp], store, job, head, tile, threadIdx.x % 32);
  }
}

template <TokenCodec kCodec>
Status LaunchFor(const TileStore& store, cudaStream_t stream) {
  const uint64_t work = uint64_t{store.num_jobs} * store.num_kv_heads * 2;
  const auto grid = static_cast<uint32_t>((work + kWarps - 1) / kWarps);
  return ForHeadDim(store.head_dim, [&](auto d) {
    StoreTilesKernel<kCodec, d()><<<grid, 32 * kWarps, 0, stream>>>(store);
    return StatusOf(cudaGetLastError(), "store tiles");
  });
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
