#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128Value2Cap() { return MakePairVariant<128, 12, true, 2, 4>(); }

}  // namespace kvant::kernels::cuda
