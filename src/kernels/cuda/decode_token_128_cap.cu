#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant TokenVariant128Cap() { return MakeTokenVariant<128, 12, true>(); }

}  // namespace kvant::kernels::cuda
