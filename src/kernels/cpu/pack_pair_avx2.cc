#include "kernels/cpu/lanes_avx2.h"
#include "kernels/cpu/pack_pair_template.h"

namespace kvant::kernels {

void (*const kRotateRowsAvx2)(const RotateTask&) = RotateRows<LanesAvx2>;
void (*const kPackPairAvx2)(const PackTask&) = PackPair<LanesAvx2>;

}  // namespace kvant::kernels
