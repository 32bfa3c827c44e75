#pragma once

#include <optional>
#include <vector>

#include "kvant/codec/equalization.h"
#include "kvant/codec/pair_block.h"

namespace kvant::codec {

/// What says how a layer's keys become codes, beside the keys: widths of pair pages, or an equalization. One of them.
struct LayerMaps {
  std::optional<PairBlockFormat> pairs{};
  std::vector<WidthMap> widths{};  ///< [num_kv_heads], with `pairs`
  std::optional<Equalization> equalization{};
  friend bool operator==(const LayerMaps&, const LayerMaps&) = default;
};

}  // namespace kvant::codec
