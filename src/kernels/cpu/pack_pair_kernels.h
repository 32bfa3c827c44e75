#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attend_kernels.h"

// The packing kernel of one instruction set behind kernels/pair_pages.h, with plain data: compiled with each set's
// flags.
namespace kvant::kernels {

/// One page to be packed.
struct PackTask : PairPageTask {
  std::byte* page;
  const Half* keys;
  const Half* values;
  size_t stride;
  bool mid_rise_keys;
  bool mid_rise_values;
};

/// Rows [num_rows, head_dim] turned as codec::RotateRow does it.
struct RotateTask {
  const Half* src;
  Half* dst;
  size_t src_stride;
  size_t dst_stride;
  size_t num_rows;
  uint32_t head_dim;
};

extern void (*const kRotateRowsAvx2)(const RotateTask& task);
extern void (*const kRotateRowsAvx512)(const RotateTask& task);
extern void (*const kPackPairAvx2)(const PackTask& task);
extern void (*const kPackPairAvx512)(const PackTask& task);

}  // namespace kvant::kernels
