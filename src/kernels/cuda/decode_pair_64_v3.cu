#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant64Value3() { return MakePairVariant<64, 12, false, 3, 8>(); }

}  // namespace kvant::kernels::cuda
