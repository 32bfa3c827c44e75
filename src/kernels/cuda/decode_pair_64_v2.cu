#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant64Value2() { return MakePairVariant<64, 12, false, 2, 8>(); }

}  // namespace kvant::kernels::cuda
