#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant64Value2Cap() { return MakePairVariant<64, 12, true, 2, 8>(); }

}  // namespace kvant::kernels::cuda
