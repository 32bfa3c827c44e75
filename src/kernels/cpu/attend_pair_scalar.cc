#include "kernels/cpu/attend_pair.h"
#include "kernels/cpu/pair_lanes_portable.h"

namespace kvant::kernels {

const PairKernels kPairScalar = MakePairKernels<PairLanesPortable>();

}  // namespace kvant::kernels
