#include "kernels/cpu/pair_load_avx512.h"
#include "kernels/cpu/pair_logits_avx512.h"
#include "kernels/cpu/pair_values_avx512.h"
#include "kernels/cpu/pair_weights_avx512.h"

// Attention to one page of pair-mixed codes (docs/format/pair-pages.md) by look-ups. A page is turned into indexes
// once, in the nearest cache, and met by all rows: six places or six tokens at a time, plane by plane.
namespace kvant::kernels {
namespace {

void AttendPairPage(const PairTask& task, RowBlock& rows, PairMemory& pairs, StretchMemory& memory) {
  CutAllRows(task, pairs, rows);
  ForRuns(rows.num_rows, [&](const RowRun& run) { LookUpKeys(task, run, pairs, rows, memory.fetch); });
  MakeWeights(task, rows, pairs, memory);
  const auto look_up = task.value_bits == 2   ? LookUpValues<2>
                       : task.value_bits == 3 ? LookUpValues<3>
                       : task.value_bits == 4 ? LookUpValues<4>
                                              : LookUpValues<8>;
  ForRuns(rows.num_rows, [&](const RowRun& run) { look_up(task, run, pairs, rows, memory.fetch); });
}

void FinishPairRows(const PairTask& task, bool rotated, RowBlock& rows) {
  alignas(64) float channels[codec::kMaxHeadDim + V::kLanes];
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    OrderValues(task, rows.pair.out + size_t{row} * rows.pair.value_places, channels);
    FinishPairRow<V>(task, rotated, row, channels, rows);
  }
}

}  // namespace

const PairKernels kPairAvx512 = {ValuePlaces, PreparePairRows, LoadPairPage, AttendPairPage, FinishPairRows};

}  // namespace kvant::kernels
