#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/pack_pair_template.h"

namespace kvant::kernels {

void (*const kRotateRowsAvx512)(const RotateTask&) = RotateRows<LanesAvx512>;
void (*const kPackPairAvx512)(const PackTask&) = PackPair<LanesAvx512>;

}  // namespace kvant::kernels
