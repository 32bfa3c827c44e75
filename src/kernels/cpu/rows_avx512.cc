#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/rows_template.h"

namespace kvant::kernels {

const RowLoops kRowLoopsAvx512 = MakeRowLoops<LanesAvx512>();

}  // namespace kvant::kernels
