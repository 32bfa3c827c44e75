#include "kvant/kernels/equalize.h"

#include "kernels/cpu/equalize_kernels.h"
#include "kvant/codec/equalization.h"

namespace kvant::kernels {
namespace {

void AddKeys(uint32_t head_dim, const Half* keys, size_t num_keys, double* sums, float* lows, float* highs) {
  const codec::KeyStats stats{{sums, head_dim}, {lows, head_dim}, {highs, head_dim}};
  for (size_t i = 0; i < num_keys; ++i) {
    codec::AddKey({keys + i * head_dim, head_dim}, stats);
  }
}

void Equalize(uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys) {
  for (size_t i = 0; i < num_keys; ++i) {
    const std::span<Half> key(keys + i * head_dim, head_dim);
    codec::EqualizeRow(key, {mean, head_dim}, {scale, head_dim}, key);
  }
}

constexpr EqualizeKernels kScalar = {AddKeys, Equalize};

// Whole vectors where the head dimension allows it; the few others take the scalar code.
constexpr EqualizeKernels kVector = {
    [](uint32_t head_dim, const Half* keys, size_t num_keys, double* sums, float* lows, float* highs) {
      (head_dim % 8 == 0 ? kEqualizeAvx2 : kScalar).add_keys(head_dim, keys, num_keys, sums, lows, highs);
    },
    [](uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys) {
      (head_dim % 8 == 0 ? kEqualizeAvx2 : kScalar).equalize(head_dim, mean, scale, keys, num_keys);
    }};

}  // namespace

const EqualizeKernels& EqualizeKernelsOf(Isa isa) { return isa == Isa::kScalar ? kScalar : kVector; }

}  // namespace kvant::kernels
