#include "kvant/kernels/equalize.h"

#include "kernels/cpu/equalize_kernels.h"
#include "kvant/codec/equalization.h"

namespace kvant::kernels {
namespace {

void AddSums(uint32_t head_dim, const Half* keys, size_t num_keys, double* sums) {
  for (size_t i = 0; i < num_keys; ++i) {
    codec::AddKeySum({keys + i * head_dim, head_dim}, {sums, head_dim});
  }
}

void AddRanges(uint32_t head_dim, const Half* mean, const Half* keys, size_t num_keys, float* ranges) {
  for (size_t i = 0; i < num_keys; ++i) {
    codec::AddKeyRange({keys + i * head_dim, head_dim}, {mean, head_dim}, {ranges, head_dim});
  }
}

void Equalize(uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys) {
  for (size_t i = 0; i < num_keys; ++i) {
    const std::span<Half> key(keys + i * head_dim, head_dim);
    codec::EqualizeRow(key, {mean, head_dim}, {scale, head_dim}, key);
  }
}

constexpr EqualizeKernels kScalar = {AddSums, AddRanges, Equalize};

// Whole vectors where the head dimension allows it; the few others take the scalar code.
constexpr EqualizeKernels kVector = {
    [](uint32_t head_dim, const Half* keys, size_t num_keys, double* sums) {
      (head_dim % 8 == 0 ? kEqualizeAvx2 : kScalar).add_sums(head_dim, keys, num_keys, sums);
    },
    [](uint32_t head_dim, const Half* mean, const Half* keys, size_t num_keys, float* ranges) {
      (head_dim % 8 == 0 ? kEqualizeAvx2 : kScalar).add_ranges(head_dim, mean, keys, num_keys, ranges);
    },
    [](uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys) {
      (head_dim % 8 == 0 ? kEqualizeAvx2 : kScalar).equalize(head_dim, mean, scale, keys, num_keys);
    }};

}  // namespace

const EqualizeKernels& EqualizeKernelsOf(Isa isa) { return isa == Isa::kScalar ? kScalar : kVector; }

}  // namespace kvant::kernels
