#pragma once

#include "kernels/cuda/pack_memory.cuh"

namespace kvant::kernels::cuda {

template <int kHeadDim>
struct PackKeyMemory {
  static constexpr uint32_t kVectors = kHeadDim / 8;
  static constexpr uint32_t kParts = kPackThreads / kVectors;  ///< shares of the tokens when ranges are taken
  PackRows<kHeadDim> rows;
  PairDeviceMap map;
  __half low[kParts][kHeadDim];
  __half high[kParts][kHeadDim];
  GroupCode codes[kHeadDim / 16][4][4];  ///< [step][quad][element]
};

KVANT_DEVICE void LoadMap(PairDeviceMap& map, const PairDeviceMap* src) {
  for (uint32_t i = threadIdx.x; i < sizeof(PairDeviceMap) / 16; i += kPackThreads) {
    reinterpret_cast<uint4*>(&map)[i] = __ldg(reinterpret_cast<const uint4*>(src) + i);
  }
}

/// Ranges of eight channels a thread over its share of the tokens.
template <int kHeadDim>
KVANT_DEVICE void MeasureKeys(PackKeyMemory<kHeadDim>& memory) {
  using Memory = PackKeyMemory<kHeadDim>;
  constexpr uint32_t kTokens = kPackTokens / Memory::kParts;
  const uint32_t channel = threadIdx.x % Memory::kVectors * 8;
  const uint32_t part = threadIdx.x / Memory::kVectors;
  const auto words = [&](uint32_t t) {
    return *reinterpret_cast<const uint4*>(&memory.rows.x[part * kTokens + t][channel]);
  };
  const uint4 w = words(0);
  Range2 range[4] = {Range2::Of(AsHalf2(w.x)), Range2::Of(AsHalf2(w.y)), Range2::Of(AsHalf2(w.z)),
                     Range2::Of(AsHalf2(w.w))};
#pragma unroll 4
  for (uint32_t t = 1; t < kTokens; ++t) {
    const uint4 x = words(t);
    range[0].Add(AsHalf2(x.x));
    range[1].Add(AsHalf2(x.y));
    range[2].Add(AsHalf2(x.z));
    range[3].Add(AsHalf2(x.w));
  }
  *reinterpret_cast<uint4*>(&memory.low[part][channel]) =
      make_uint4(Bits(range[0].low), Bits(range[1].low), Bits(range[2].low), Bits(range[3].low));
  *reinterpret_cast<uint4*>(&memory.high[part][channel]) =
      make_uint4(Bits(range[0].high), Bits(range[1].high), Bits(range[2].high), Bits(range[3].high));
}

/// Scale and zero of every channel into the record, and what makes its codes into memory.
template <int kHeadDim>
KVANT_DEVICE void FitKeys(PackKeyMemory<kHeadDim>& memory, codec::PairRule rule, std::byte* record) {
  const PairDeviceMap& map = memory.map;
  auto* scales = reinterpret_cast<__half*>(record + map.tail);
  for (uint32_t position = threadIdx.x; position < kHeadDim; position += kPackThreads) {
    const uint32_t quad = position % 8 / 2;
    const uint32_t element = position % 2 + position % 16 / 8 * 2;
    const uint32_t channel = map.order[quad][position / 16] >> (8 * element) & 0xFFU;
    __half low = memory.low[0][channel];
    __half high = memory.high[0][channel];
#pragma unroll
    for (uint32_t p = 1; p < PackKeyMemory<kHeadDim>::kParts; ++p) {
      low = __hmin(low, memory.low[p][channel]);
      high = __hmax(high, memory.high[p][channel]);
    }
    // A channel keeps its own width inside a wider field.
    const int bits = static_cast<int>(map.width[channel]);
    const DeviceGroup group = Fit(rule, bits, __half2float(low), __half2float(high));
    const uint32_t at = PlaceOfKeyScale(position);
    scales[at] = group.scale;
    scales[kHeadDim + at] = group.zero;
    memory.codes[position / 16][quad][element] = GroupCode::Of(group, bits, HasCells(rule, bits));
  }
}

/// Every key word of the warp's block once. A lane holds four tokens of one quad of channels at a time.
template <bool kAllCells, int kHeadDim>
KVANT_DEVICE void WriteKeys(const PackKeyMemory<kHeadDim>& memory, std::byte* record) {
  const PairDeviceMap& map = memory.map;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t block = threadIdx.x / 32;
  const __half* rows = memory.rows.x[block * 32 + lane / 4];
  std::byte* dst = record + block * map.block_bytes + lane * 8;
  for (uint32_t column = 0; column < map.key_columns; ++column) {
    uint32_t words[4] = {0, 0, 0, 0};  // tokens 8 apart
#pragma unroll 1
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const PairDeviceMap::Step& s = map.steps[step];
      if (s.offset != column * 256) continue;
      const uint32_t channels = map.order[lane % 4][step];
#pragma unroll
      for (uint32_t pair = 0; pair < 2; ++pair) {
        const GroupCode even = memory.codes[step][lane % 4][2 * pair];
        const GroupCode odd = memory.codes[step][lane % 4][2 * pair + 1];
        const __half* even_row = rows + (channels >> (16 * pair) & 0xFFU);
        const __half* odd_row = rows + (channels >> (16 * pair + 8) & 0xFFU);
        const uint32_t place = 1U << (s.position + pair * s.width);
#pragma unroll
        for (uint32_t t = 0; t < 4; ++t) {
          const uint32_t codes =
              PackCodes(even.template Encode<kAllCells>(__half2float(even_row[t * 8 * PackRows<kHeadDim>::kPitch])),
                        odd.template Encode<kAllCells>(__half2float(odd_row[t * 8 * PackRows<kHeadDim>::kPitch])));
          words[t] += codes * place;
        }
      }
    }
    const uint32_t tile = map.key_columns * 256;
    *reinterpret_cast<uint2*>(dst + column * 256) = make_uint2(words[0], words[1]);
    *reinterpret_cast<uint2*>(dst + tile + column * 256) = make_uint2(words[2], words[3]);
  }
}

/// load(rows): every warp brings its own 32 rows.
template <int kHeadDim, bool kAllCells, class Load>
KVANT_DEVICE void PackKeys(const codec::PairFormat& format, const PairDeviceMap* map, std::byte* record, Load load) {
  auto& memory = Shared<PackKeyMemory<kHeadDim>>(0);
  load(memory.rows);
  LoadMap(memory.map, map);
  WaitForCopies<0>();
  __syncthreads();
  MeasureKeys(memory);
  __syncthreads();
  FitKeys(memory, format.key_rule, record);
  __syncthreads();
  WriteKeys<kAllCells>(memory, record);
}

}  // namespace kvant::kernels::cuda
