#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attend_common.h"
#include "kernels/cpu/lanes_portable.h"

// Pages of bit planes and packed rows into units of four bytes, in plain C++. Its twin for real vector registers is
// pair_lanes_avx2.h.
//
// Tokens stand in the kernels' order: of the 4·kLanes tokens that four vectors hold, vector k holds in its lanes 4L to
// 4L + 3 the tokens of four 4L + k, so that packing the four vectors gives the tokens in their own order.
namespace kvant::kernels {
namespace {

struct PairLanesPortable {
  using V = LanesPortable;

  /// Fills PairMemory::units.keys: codes with their highest bit at bit 3, whatever their width.
  static void ExpandKeys(const PairTask& task, PairMemory& pairs) {
    const uint16_t* planes = task.planes;
    for (uint32_t place = 0; place < task.head_dim; planes += task.widths[place++]) {
      for (uint32_t t = 0; t < task.page_tokens; ++t) {
        unsigned code = 0;
        for (uint32_t j = 0; j < task.widths[place]; ++j) {
          const std::byte* plane = task.page + size_t{planes[j]} * (task.page_tokens / 8);
          code |= (static_cast<unsigned>(plane[t / 8]) >> (t % 8) & 1U) << j;
        }
        // A vector holds four tokens here, which come in their own order.
        pairs.units.keys[place / 4][t][place % 4] = static_cast<uint8_t>(code << (kMaxKeyBits - task.widths[place]));
      }
    }
  }

  /// Halves by channel to numbers by place.
  static void PlaceHalves(const PairTask& task, const std::byte* by_channel, float* by_place) {
    for (uint32_t place = 0; place < task.head_dim; ++place) {
      Half half;
      std::memcpy(&half, by_channel + task.order[place] * sizeof half, sizeof half);
      by_place[place] = ToFloat(half);
    }
  }

  /// Four vectors of one number a token, into the kernels' order.
  static void StoreOrdered(const V::F (&numbers)[4], float* dst) {
    for (uint32_t k = 0; k < 4; ++k) {
      V::Store(dst + k * V::kLanes, numbers[k]);
    }
  }

  /// Byte i of four rows, `row_bytes` apart, becomes unit i. May read 15 bytes beyond the last row.
  static void JoinRows(const std::byte* rows, size_t row_bytes, uint32_t blocks, uint8_t (*units)[64]) {
    for (size_t i = 0; i < row_bytes; ++i) {
      for (size_t t = 0; t < 4; ++t) {
        units[i / 16][i % 16 * 4 + t] = static_cast<uint8_t>(rows[t * row_bytes + i]);
      }
    }
    for (size_t i = row_bytes; i < size_t{blocks} * 16; ++i) {
      std::memset(&units[i / 16][i % 16 * 4], 0, 4);
    }
  }
};

}  // namespace
}  // namespace kvant::kernels
