#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant TokenVariant256() { return MakeTokenVariant<256, 6, false>(); }

}  // namespace kvant::kernels::cuda
