#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128Value4() { return MakePairVariant<128, 12, false, 4, 4>(); }

}  // namespace kvant::kernels::cuda
