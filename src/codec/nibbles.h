#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "kvant/base/checked.h"

// A 4-bit row: groups of 8 channels, 4 bytes each (RowCodeBytes).
namespace kvant::codec {

inline void PackNibbles(std::span<const uint8_t> codes, uint8_t* row) {
  std::memset(row, 0, 4 * CeilDiv(codes.size(), 8));
  for (size_t c = 0; c < codes.size(); ++c) {
    row[4 * (c / 8) + c % 4] |= static_cast<uint8_t>(codes[c] << (c % 8 < 4 ? 0 : 4));
  }
}

inline void UnpackNibbles(const uint8_t* row, std::span<uint8_t> codes) {
  for (size_t c = 0; c < codes.size(); ++c) {
    codes[c] = (row[4 * (c / 8) + c % 4] >> (c % 8 < 4 ? 0 : 4)) & 0xFU;
  }
}

}  // namespace kvant::codec
