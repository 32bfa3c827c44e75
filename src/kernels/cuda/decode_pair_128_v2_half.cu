#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128HalfThreeOneValue2() {
  return MakePairVariant<128, 12, false, 2, 8, PairSteps::kHalfThreeOne>();
}

}  // namespace kvant::kernels::cuda
