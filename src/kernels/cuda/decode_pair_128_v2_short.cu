#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128Value2Short() { return MakePairVariant<128, 12, false, 2, 4>(); }

}  // namespace kvant::kernels::cuda
