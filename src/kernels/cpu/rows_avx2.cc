#include "kernels/cpu/lanes_avx2.h"
#include "kernels/cpu/rows_template.h"

namespace kvant::kernels {

const RowLoops kRowLoopsAvx2 = MakeRowLoops<LanesAvx2>();

}  // namespace kvant::kernels
