#pragma once

#include "kvant/kernels/equalize.h"

namespace kvant::kernels {

/// For head dimensions that are multiples of 8.
extern const EqualizeKernels kEqualizeAvx2;

}  // namespace kvant::kernels
