#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "kvant/base/status.h"

namespace kvant::kernels::cuda {

/// Calls visit with the head dimension as a constant. Errors  kModelUnsupported: the kernels do not have it
template <class Visit>
Status ForHeadDim(uint32_t head_dim, Visit visit) {
  switch (head_dim) {
    case 64: return visit(std::integral_constant<int, 64>{});
    case 128: return visit(std::integral_constant<int, 128>{});
    case 256: return visit(std::integral_constant<int, 256>{});
    default:
      return {StatusCode::kModelUnsupported,
              "the CUDA kernels have head dimensions 64, 128 and 256, not " + std::to_string(head_dim)};
  }
}

}  // namespace kvant::kernels::cuda
