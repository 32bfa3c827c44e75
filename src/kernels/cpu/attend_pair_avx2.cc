#include "kernels/cpu/attend_pair.h"
#include "kernels/cpu/pair_lanes_avx2.h"

namespace kvant::kernels {

const PairKernels kPairAvx2 = MakePairKernels<PairLanesAvx2>();

}  // namespace kvant::kernels
