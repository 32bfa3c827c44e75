#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128Value3() { return MakePairVariant<128, 12, false, 3, 4>(); }

}  // namespace kvant::kernels::cuda
