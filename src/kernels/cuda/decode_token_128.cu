#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant TokenVariant128() { return MakeTokenVariant<128, 12, false>(); }

}  // namespace kvant::kernels::cuda
