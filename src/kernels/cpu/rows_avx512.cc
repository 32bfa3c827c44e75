#include "kernels/cpu/rows_template.h"
#include "kernels/cpu/lanes_avx512.h"

namespace kvant::kernels {

const RowLoops kRowLoopsAvx512 = MakeRowLoops<LanesAvx512>();

}  // namespace kvant::kernels
