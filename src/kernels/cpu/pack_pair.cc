#include "kernels/cpu/pack_pair_kernels.h"
#include "kvant/base/check.h"
#include "kvant/kernels/pair_pages.h"

namespace kvant::kernels {
namespace {

PackTask TaskOf(const PairPlan& plan, const Half* keys, const Half* values, size_t stride, std::byte* page) {
  return {PageTaskOf(plan),
          page,
          keys,
          values,
          stride,
          plan.format().key_rule == codec::PairRule::kMidRise,
          plan.format().value_rule == codec::PairRule::kMidRise};
}

}  // namespace

void PackPairPage(Isa isa, const PairPlan& plan, const Half* keys, const Half* values, size_t stride,
                  std::span<std::byte> page) {
  KVANT_CHECK(page.size() == plan.layout().total_bytes, "the caller sized the page by PairPageLayout");
  // The vector kernels know the range of a group alone, and of one bit the quarter points.
  const bool plain_code = plan.format().one_bit != codec::OneBitRule::kQuarterPoints;
  switch (plain_code ? Isa::kScalar : isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return kPackPairAvx2(TaskOf(plan, keys, values, stride, page.data()));
    case Isa::kAvx512Vnni: return kPackPairAvx512(TaskOf(plan, keys, values, stride, page.data()));
  }
  codec::SerializePairPage(plan.format(), plan.map(),
                           codec::EncodePairPageRef(plan.format(), plan.map(), keys, values, stride), page);
}

void RotateValueRows(Isa isa, uint32_t head_dim, const Half* src, size_t src_stride, size_t num_rows, Half* dst,
                     size_t dst_stride) {
  const RotateTask task{src, dst, src_stride, dst_stride, num_rows, head_dim};
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return kRotateRowsAvx2(task);
    case Isa::kAvx512Vnni: return kRotateRowsAvx512(task);
  }
  std::vector<float> row(head_dim);
  for (size_t i = 0; i < num_rows; ++i) {
    ToFloat(std::span(src + i * src_stride, head_dim), row);
    codec::RotateRow(row);
    ToHalf(row, std::span(dst + i * dst_stride, head_dim));
  }
}

}  // namespace kvant::kernels
