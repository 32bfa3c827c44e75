#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant256Value2Cap() { return MakePairVariant<256, 6, true, 2, 4>(); }

}  // namespace kvant::kernels::cuda
