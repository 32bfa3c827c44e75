#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant256Value4() { return MakePairVariant<256, 6, false, 4, 2>(); }

}  // namespace kvant::kernels::cuda
