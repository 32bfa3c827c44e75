#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant256Value2() { return MakePairVariant<256, 6, false, 2, 4>(); }

}  // namespace kvant::kernels::cuda
