#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant TokenVariant64Cap() { return MakeTokenVariant<64, 12, true>(); }

}  // namespace kvant::kernels::cuda
