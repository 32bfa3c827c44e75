#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant64Value4() { return MakePairVariant<64, 12, false, 4, 8>(); }

}  // namespace kvant::kernels::cuda
