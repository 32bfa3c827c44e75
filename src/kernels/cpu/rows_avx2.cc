#include "kernels/cpu/rows_template.h"
#include "kernels/cpu/lanes_avx2.h"

namespace kvant::kernels {

const RowLoops kRowLoopsAvx2 = MakeRowLoops<LanesAvx2>();

}  // namespace kvant::kernels
