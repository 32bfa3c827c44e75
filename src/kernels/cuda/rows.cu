#include <cuda_runtime.h>

#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/status.h"
#include "kvant/kernels/cuda/pack.h"

namespace kvant::kernels::cuda {
namespace {

using codec::TokenCodec;
constexpr int kThreads = 256;

// Eight channels a lane, head_dim / 8 lanes a row, two rows a lane in flight.
template <TokenCodec kCodec>
struct Lane8 {
  static constexpr int kBits = codec::CodeBits(kCodec);
  using Word = std::conditional_t<kBits == 8, uint2, uint32_t>;

  // The row's own order (codec::RowCodeBytes): bytes, or nibble pairs (j, 4 + j).
  // Only the lowest byte of a code counts.
  static KVANT_DEVICE Word Pack(const uint32_t (&code)[8]) {
    const uint32_t first = Bytes(code[0], code[1], code[2], code[3]);
    const uint32_t second = Bytes(code[4], code[5], code[6], code[7]);
    if constexpr (kBits == 8) {
      return make_uint2(first, second);
    } else {
      return first | second << 4;
    }
  }
  static KVANT_DEVICE uint32_t Bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  }
  static KVANT_DEVICE void Unpack(Word word, uint32_t (&code)[8]) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if constexpr (kBits == 8) {
        code[c] = (c < 4 ? word.x : word.y) >> (8 * (c % 4)) & 0xFFU;
      } else {
        code[c] = word >> (8 * (c % 4) + c / 4 * 4) & 0xFU;
      }
    }
  }
};

KVANT_DEVICE void Widen(uint4 w, float (&x)[8]) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(AsHalf2(words[i]));
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

/// Least and most of a row that kLanes lanes hold: the most is carried as its negative, so that one exchange serves
/// both.
template <int kLanes>
KVANT_DEVICE float2 RangeOfRow(uint4 w) {
  const __half2 low = __hmin2(__hmin2(AsHalf2(w.x), AsHalf2(w.y)), __hmin2(AsHalf2(w.z), AsHalf2(w.w)));
  const __half2 high = __hmax2(__hmax2(AsHalf2(w.x), AsHalf2(w.y)), __hmax2(AsHalf2(w.z), AsHalf2(w.w)));
  const uint32_t negative = Bits(__hneg2(high));
  __half2 both =
      __hmin2(AsHalf2(__byte_perm(Bits(low), negative, 0x5410)), AsHalf2(__byte_perm(Bits(low), negative, 0x7632)));
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    both = __hmin2(both, __shfl_xor_sync(~0U, both, distance));
  }
  return make_float2(__low2float(both), -__high2float(both));
}

template <TokenCodec kCodec, int kHeadDim>
__global__ void __launch_bounds__(kThreads) EncodeRowsKernel(const uint4* rows, size_t num_rows, DeviceRows out) {
  constexpr int kLanes = kHeadDim / 8;
  constexpr int kBits = codec::CodeBits(kCodec);
  using Row = Lane8<kCodec>;
  const size_t stride = size_t{gridDim.x} * kThreads / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  // Whole warps stay together: a row beyond the end is read again and not written.
  const size_t rounds = (num_rows + stride - 1) / stride;
  size_t row = (size_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  uint4 next = __ldcs(rows + min(row, num_rows - 1) * kLanes + lane);
  for (size_t round = 0; round < rounds; ++round, row += stride) {
    const uint4 now = next;
    if (round + 1 < rounds) next = __ldcs(rows + min(row + stride, num_rows - 1) * kLanes + lane);
    const float2 range = RangeOfRow<kLanes>(now);
    const DeviceGroup group =
        codec::HasZero(kCodec) ? FitAffine(kBits, range.x, range.y) : FitSymmetric(kBits, range.x, range.y);
    float x[8];
    Widen(now, x);
    const RowCode<kCodec> row_code{group.inverse, group.zero_value};
    uint32_t code[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) code[c] = row_code.Encode(x[c]);
    if (row >= num_rows) continue;
    reinterpret_cast<typename Row::Word*>(out.codes)[row * kLanes + lane] = Row::Pack(code);
    if (lane == 0) {
      out.scales[row] = __half_as_ushort(group.scale);
      if constexpr (codec::HasZero(kCodec)) out.zeros[row] = __half_as_ushort(group.zero);
    }
  }
}

template <TokenCodec kCodec, int kHeadDim>
__global__ void __launch_bounds__(kThreads) DecodeRowsKernel(DeviceRows in, size_t num_rows, uint4* rows) {
  constexpr int kLanes = kHeadDim / 8;
  using Row = Lane8<kCodec>;
  constexpr int kBias = codec::HasZero(kCodec) ? 0 : quant::SymmetricBias(codec::CodeBits(kCodec));
  const size_t count = num_rows * kLanes;
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    uint32_t code[8];
    Row::Unpack(__ldcs(reinterpret_cast<const typename Row::Word*>(in.codes) + i), code);
    const size_t row = i / kLanes;
    const float scale = __half2float(__ushort_as_half(__ldg(in.scales + row)));
    const float zero = codec::HasZero(kCodec) ? __half2float(__ushort_as_half(__ldg(in.zeros + row))) : 0.0F;
    uint32_t words[4];
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
      const float a = __fadd_rn(__fmul_rn(scale, static_cast<float>(static_cast<int>(code[c]) - kBias)), zero);
      const float b = __fadd_rn(__fmul_rn(scale, static_cast<float>(static_cast<int>(code[c + 1]) - kBias)), zero);
      words[c / 2] = PackHalf2(a, b);
    }
    __stcs(rows + i, make_uint4(words[0], words[1], words[2], words[3]));
  }
}

/// Calls launch with the codec and head dimension as types, where there are rows.
template <class Launch>
Status ForRowType(TokenCodec codec, uint32_t head_dim, size_t num_rows, const char* what, Launch launch) {
  const auto with_codec = [&](auto c) {
    return ForHeadDim(head_dim, [&](auto d) {
      if (num_rows != 0) launch(c, d);
      return StatusOf(cudaGetLastError(), what);
    });
  };
  switch (codec) {
    case TokenCodec::kInt8: return with_codec(std::integral_constant<TokenCodec, TokenCodec::kInt8>{});
    case TokenCodec::kInt4: return with_codec(std::integral_constant<TokenCodec, TokenCodec::kInt4>{});
    case TokenCodec::kInt4Affine: return with_codec(std::integral_constant<TokenCodec, TokenCodec::kInt4Affine>{});
    default: return {StatusCode::kInvalidArgument, "fp16 rows are copied, not encoded"};
  }
}

uint32_t BlocksFor(size_t num_rows, uint32_t head_dim) {
  constexpr size_t kMostBlocks = 132 * 8;
  const size_t needed = (num_rows * head_dim / 8 + kThreads - 1) / kThreads;
  return static_cast<uint32_t>(needed < kMostBlocks ? needed : kMostBlocks);
}

}  // namespace

Status EncodeRows(TokenCodec codec, uint32_t head_dim, const void* rows, size_t num_rows, DeviceRows out,
                  Stream stream) {
  return ForRowType(codec, head_dim, num_rows, "encode rows", [&](auto c, auto d) {
    EncodeRowsKernel<c(), d()><<<BlocksFor(num_rows, head_dim), kThreads, 0, AsStream(stream)>>>(
        static_cast<const uint4*>(rows), num_rows, out);
  });
}

Status DecodeRows(TokenCodec codec, uint32_t head_dim, DeviceRows in, size_t num_rows, void* rows, Stream stream) {
  return ForRowType(codec, head_dim, num_rows, "decode rows", [&](auto c, auto d) {
    DecodeRowsKernel<c(), d()>
        <<<BlocksFor(num_rows, head_dim), kThreads, 0, AsStream(stream)>>>(in, num_rows, static_cast<uint4*>(rows));
  });
}

}  // namespace kvant::kernels::cuda
