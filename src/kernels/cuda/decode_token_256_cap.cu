#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant TokenVariant256Cap() { return MakeTokenVariant<256, 6, true>(); }

}  // namespace kvant::kernels::cuda
