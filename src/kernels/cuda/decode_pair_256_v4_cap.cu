#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant256Value4Cap() { return MakePairVariant<256, 6, true, 4, 2>(); }

}  // namespace kvant::kernels::cuda
