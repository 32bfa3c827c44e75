#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128Value2() { return MakePairVariant<128, 12, false, 2, 8>(); }

}  // namespace kvant::kernels::cuda
