#pragma once

#include "kernels/cuda/pack_memory.cuh"

/// Values into pages. Warps share nothing: each fits and writes its own 32 tokens, a block of the record.
namespace kvant::kernels::cuda {

/// What is a group's own of its GroupCode; the rest is the same for all values.
struct alignas(8) ValueCode {
  float zero;
  float inverse;
};

template <int kHeadDim>
struct PackValueMemory {
  PackRows<kHeadDim> rows;
  ValueCode codes[1][kPackTokens];  ///< [group][token]; as many groups as the launch says

  static constexpr uint32_t Bytes(uint32_t groups) {
    return static_cast<uint32_t>(sizeof(PackRows<kHeadDim>)) +
           groups * kPackTokens * static_cast<uint32_t>(sizeof(ValueCode));
  }
};

/// A lane fits the groups of one token.
template <int kHeadDim>
KVANT_DEVICE void FitValues(PackValueMemory<kHeadDim>& memory, const codec::PairFormat& format, int bits,
                            __half* scales) {
  const uint32_t token = threadIdx.x;
  const uint32_t groups = format.head_dim / format.value_group;
  const __half* row = memory.rows.x[token];
  for (uint32_t group = 0; group < groups; ++group) {
    const __half* x = row + group * format.value_group;
    Range2 range = Range2::Of(*reinterpret_cast<const __half2*>(x));
#pragma unroll 2
    for (uint32_t c = 0; c < format.value_group; c += 8) {
      const uint4 w = *reinterpret_cast<const uint4*>(x + c);
      range.Add(AsHalf2(w.x));
      range.Add(AsHalf2(w.y));
      range.Add(AsHalf2(w.z));
      range.Add(AsHalf2(w.w));
    }
    const DeviceGroup fit =
        Fit(format.value_rule, bits, __half2float(__hmin(__low2half(range.low), __high2half(range.low))),
            __half2float(__hmax(__low2half(range.high), __high2half(range.high))));
    const GroupCode code = GroupCode::Of(fit, bits, HasCells(format.value_rule, bits));
    scales[group * kPackTokens + token] = fit.scale;
    scales[(groups + group) * kPackTokens + token] = fit.zero;
    memory.codes[group][token] = {code.zero, code.inverse};
  }
  __syncwarp();
}

/// The 16 × 16 tile of 16 channels and 16 tokens as operand words: [upper + 2 · block], tokens in the halves.
template <int kHeadDim>
KVANT_DEVICE uint4 LoadValueTile(const PackRows<kHeadDim>& rows, uint32_t first_token, uint32_t step, uint32_t lane) {
  const uint32_t token = first_token + lane % 8 + lane / 16 * 8;
  const uint32_t channel = step * 16 + lane / 8 % 2 * 8;
  return LoadTransposed(SharedAddress(&rows.x[token][channel]));
}

/// Codes of a tile's step: two tokens a word.
template <bool kAllCells, int kHeadDim>
KVANT_DEVICE void EncodeValueTile(const PackValueMemory<kHeadDim>& memory, uint32_t first_token, uint32_t step,
                                  uint32_t group, float top, float half, uint32_t lane, uint32_t (&codes)[4]) {
  const uint4 tile = LoadValueTile(memory.rows, first_token, step, lane);
  const uint32_t words[4] = {tile.x, tile.y, tile.z, tile.w};
#pragma unroll
  for (uint32_t block = 0; block < 2; ++block) {
    const float4 pair =
        *reinterpret_cast<const float4*>(&memory.codes[group][first_token + 8 * block + 2 * (lane % 4)]);
    const GroupCode even{pair.x, pair.y, top, half};
    const GroupCode odd{pair.z, pair.w, top, half};
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper) {
      const float2 x = __half22float2(AsHalf2(words[upper + 2 * block]));
      codes[upper + 2 * block] = PackCodes(even.template Encode<kAllCells>(x.x), odd.template Encode<kAllCells>(x.y));
    }
  }
}

/// One plane of a block's values: kBits bits of every code from bit kLow on.
template <int kHeadDim, int kBits, int kLow>
struct ValuePlane {
  static constexpr uint32_t kFields = 16 / kBits;
  static constexpr uint32_t kSteps = kHeadDim / 16;
  std::byte* dst;  ///< this lane's place in the plane's first group
  uint32_t words[4] = {0, 0, 0, 0};

  /// Fields come in order; tile and step are constants where the loops are unrolled.
  KVANT_DEVICE void Add(uint32_t tile, uint32_t step, const uint32_t (&codes)[4]) {
    constexpr uint32_t kMask = ((1U << kBits) - 1U) * 0x10001U;
    const uint32_t field = (kSteps % kFields == 0 ? step : tile * kSteps + step) % kFields;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t part = kLow == 0 && kBits != 1 ? codes[i] : codes[i] >> kLow & kMask;
      words[i] += part << (field * kBits);
    }
    const bool last = tile == 1 && step + 1 == kSteps;
    if (field + 1 != kFields && !last) return;
    *reinterpret_cast<uint4*>(dst + (tile * kSteps + step) / kFields * 512) =
        make_uint4(words[0], words[1], words[2], words[3]);
#pragma unroll
    for (uint32_t& word : words) word = 0;
  }
};

/// All planes of the warp's block; `values` is where they begin.
template <int kHeadDim, int kValueBits, bool kAllCells>
KVANT_DEVICE void WriteValues(const PackValueMemory<kHeadDim>& memory, const codec::PairFormat& format,
                              std::byte* values) {
  constexpr int kSteps = kHeadDim / 16;
  constexpr bool kTwoPlanes = kValueBits == 3;
  constexpr int kFieldBits = kTwoPlanes ? 2 : kValueBits;
  constexpr int kTilesAtOnce = kTwoPlanes || kSteps < 16 / kFieldBits ? 2 : 1;  // a word may hold fields of both tiles
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t first = threadIdx.x / 32 * 32;
  const bool cells = HasCells(format.value_rule, kValueBits);
  const float top = (static_cast<float>(quant::AffineMax(kValueBits)) + (cells ? 0.5F : 0.0F)) * 0.0625F;
  const float half = cells ? 0.03125F : 0.0F;
  const uint32_t steps_a_group = format.value_group / 16;
  ValuePlane<kHeadDim, 1, 0> low{values + lane * 16};
  ValuePlane<kHeadDim, kFieldBits, kTwoPlanes ? 1 : 0> plane{
      values + (kTwoPlanes ? 512 * ValueGroupsOfPlane(kHeadDim, 1) : 0) + lane * 16};
#pragma unroll kTilesAtOnce
  for (uint32_t tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      uint32_t codes[4];
      EncodeValueTile<kAllCells>(memory, first + 16 * tile, step, step / steps_a_group, top, half, lane, codes);
      if constexpr (kTwoPlanes) low.Add(tile, step, codes);
      plane.Add(tile, step, codes);
    }
  }
}

/// load(rows): every warp brings its own 32 rows.
template <int kHeadDim, int kValueBits, bool kAllCells, class Load>
KVANT_DEVICE void PackValues(const codec::PairFormat& format, const PairDeviceMap* map, std::byte* record, Load load) {
  auto& memory = Shared<PackValueMemory<kHeadDim>>(0);
  load(memory.rows);
  const uint32_t key_bytes = __ldg(&map->key_columns) * 2 * 256;
  const uint32_t block_bytes = __ldg(&map->block_bytes);
  const uint32_t tail = __ldg(&map->tail);
  WaitForCopies<0>();
  __syncwarp();
  FitValues(memory, format, kValueBits, reinterpret_cast<__half*>(record + tail + 4 * kHeadDim));
  WriteValues<kHeadDim, kValueBits, kAllCells>(memory, format, record + threadIdx.x / 32 * block_bytes + key_bytes);
}

}  // namespace kvant::kernels::cuda
