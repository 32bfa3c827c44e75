#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant256Value3() { return MakePairVariant<256, 6, false, 3, 2>(); }

}  // namespace kvant::kernels::cuda
