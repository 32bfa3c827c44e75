#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant PairVariant128Value4Cap() { return MakePairVariant<128, 12, true, 4, 4>(); }

}  // namespace kvant::kernels::cuda
