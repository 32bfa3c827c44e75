#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/pack_keys.cuh"
#include "kernels/cuda/pack_values.cuh"
#include "kernels/cuda/status.h"

namespace kvant::kernels::cuda {

inline Status CheckPack(const codec::PairFormat& format) {
  if (format.page_tokens != kPairPageTokens) {
    return {StatusCode::kInvalidArgument, "the CUDA packer has pages of 128 tokens"};
  }
  if (format.value_group < 16 || format.value_group % 16 != 0 || format.head_dim % format.value_group != 0) {
    return {StatusCode::kInvalidArgument,
            "value group: " + std::to_string(format.value_group) + " is no multiple of 16 that divides the head"};
  }
  if (format.value_bits < 2 || format.value_bits > 4) {
    return {StatusCode::kInvalidArgument, "value bits: " + std::to_string(format.value_bits) + " is not supported"};
  }
  if (format.one_bit != codec::OneBitRule::kQuarterPoints) {
    return {StatusCode::kInvalidArgument, "the CUDA packer has quarter points alone for keys of one bit"};
  }
  return OkStatus();
}

/// Calls visit(head dimension, value bits, all groups have cells) with the format's as constants.
template <class Visit>
Status ForPairFormat(const codec::PairFormat& format, Visit visit) {
  const auto with_cells = [&](auto d, auto bits) {
    const bool cells = format.key_rule == codec::PairRule::kMidRise && format.value_rule == codec::PairRule::kMidRise;
    return cells ? visit(d, bits, std::true_type{}) : visit(d, bits, std::false_type{});
  };
  const auto with_bits = [&](auto d) {
    switch (format.value_bits) {
      case 2: return with_cells(d, std::integral_constant<int, 2>{});
      case 3: return with_cells(d, std::integral_constant<int, 3>{});
      default: return with_cells(d, std::integral_constant<int, 4>{});
    }
  };
  return ForHeadDim(format.head_dim, with_bits);
}

/// Launch the kernel that `choose` names for the format; nothing when the grid is empty.
template <class Call, class Choose>
Status LaunchPack(const codec::PairFormat& format, dim3 grid, const Call& call, Stream stream, Choose choose) {
  KVANT_RETURN_IF_ERROR(CheckPack(format));
  if (grid.x == 0) {
    return OkStatus();
  }
  return ForPairFormat(format, [&](auto d, auto bits, auto cells) -> Status {
    auto* kernel = choose(d, bits, cells);
    const auto shared = static_cast<int>(
        std::max<size_t>(sizeof(PackKeyMemory<d()>), PackValueMemory<d()>::Bytes(format.ValueGroups())));
    KVANT_RETURN_IF_ERROR(
        StatusOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "pack pair pages"));
    kernel<<<grid, kPackThreads, static_cast<size_t>(shared), AsStream(stream)>>>(call);
    return StatusOf(cudaGetLastError(), "pack pair pages");
  });
}

}  // namespace kvant::kernels::cuda
