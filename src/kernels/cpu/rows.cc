#include "kvant/kernels/rows.h"

#include "kernels/cpu/rows_kernels.h"

namespace kvant::kernels {
namespace {

bool ToHalfScalar(const float* src, Half* dst, size_t count) {
  ToHalf(std::span(src, count), std::span(dst, count));
  return AllFinite(std::span<const Half>(dst, count));
}

}  // namespace

const RowKernels kRowsScalar = {codec::EncodeRowsRef, codec::DecodeRowsRef, codec::StoreRowsRef, codec::LoadRowsRef,
                                ToHalfScalar};

const RowKernels& RowKernelsOf(Isa) { return kRowsScalar; }

}  // namespace kvant::kernels
