#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant::kernels {

class PairPlan;

/// How the channels of a page of pair-mixed codes lie: codec::PairFormat and PairPlan as plain data, for kernels that
/// are compiled with each instruction set's flags.
struct PairPageTask {
  uint32_t head_dim;
  uint32_t page_tokens;
  uint32_t value_bits;
  uint32_t value_group;
  const uint16_t* order;
  const uint8_t* widths;
  const uint16_t* planes;
  size_t key_scales;
  size_t key_zeros;
  size_t value_codes;
  size_t value_scales;
  size_t value_zeros;
};

PairPageTask PageTaskOf(const PairPlan& plan);

}  // namespace kvant::kernels
