#include "kernels/cuda/decode_variant.cuh"

namespace kvant::kernels::cuda {

DecodeVariant TokenVariant64() { return MakeTokenVariant<64, 12, false>(); }

}  // namespace kvant::kernels::cuda
