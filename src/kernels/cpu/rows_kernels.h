#pragma once

#include "kvant/kernels/rows.h"

namespace kvant::kernels {

extern const RowKernels kRowsScalar;

}  // namespace kvant::kernels
