#pragma once

#include "kernels/cpu/attend_codes.h"
#include "kernels/cpu/attend_exact.h"
#include "kernels/cpu/attend_export.h"
#include "kernels/cpu/attend_queries.h"
#include "kernels/cpu/attend_softmax.h"

// Attention to one stretch of tokens, written once for every instruction set. V is one of the Lanes structs.
//
// A lane is a token while logits are made and a channel while values are added, so nothing is summed across lanes in an
// inner loop. Each row's operations and their order depend on the row and the tokens alone, never on how many rows
// share the call: that makes results bit-equal under any grouping.
namespace kvant::kernels {
namespace {

template <class V, TokenCodec kCodec>
uint32_t MakeLogits(const Stretch& stretch, uint32_t reach, RowBlock& rows, StretchMemory& memory) {
  const uint32_t padded = RoundUpTo(reach, codec::kTileTokens);
  Tiled<V>(rows.num_rows, padded / V::kLanes, [&](auto num_rows, auto num_vectors, uint32_t row, uint32_t vector) {
    constexpr int kRows = decltype(num_rows)::value;
    constexpr uint32_t kVectors = decltype(num_vectors)::value;
    if constexpr (kCodec == TokenCodec::kFp16) {
      ExactLogits<V, kRows, kVectors>(stretch, rows, row, vector, memory);
    } else {
      CodeLogits<V, kCodec, kRows, kVectors>(stretch, rows, row, vector, memory);
    }
  });
  if (rows.cap_bits > 0.0F) {
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      CapRow<V>(rows.cap_bits, padded, memory.p[row]);
    }
  }
  return padded;
}

template <class V, TokenCodec kCodec>
void AddMass(const Stretch& stretch, uint32_t reach, RowBlock& rows, StretchMemory& memory, float* mass) {
  const uint32_t padded = MakeLogits<V, kCodec>(stretch, reach, rows, memory);
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    MaskRow<V>(rows.hidden[row], rows.visible[row], padded, memory.p[row]);
    const auto minus_sum = V::Set(-rows.log_sum[row]);
    for (uint32_t t = 0; t < padded; t += V::kLanes) {
      V::Store(mass + t, V::Add(V::Load(mass + t), Exp2<V>(V::Add(V::Load(memory.p[row] + t), minus_sum))));
    }
  }
}

template <class V, TokenCodec kCodec>
void AttendStretch(const Stretch& stretch, uint32_t reach, RowBlock& rows, StretchMemory& memory) {
  constexpr bool kExact = kCodec == TokenCodec::kFp16;
  const uint32_t padded = MakeLogits<V, kCodec>(stretch, reach, rows, memory);
  SoftmaxRows<V, kCodec>(stretch, padded, rows, memory);
  const uint32_t num_vectors = stretch.value_channels / V::kLanes;
  Tiled<V>(rows.num_rows, num_vectors, [&](auto num_rows, auto vectors, uint32_t row, uint32_t vector) {
    constexpr int kRows = decltype(num_rows)::value;
    constexpr uint32_t kVectors = decltype(vectors)::value;
    if constexpr (kExact) {
      AddExactValues<V, kRows, kVectors>(stretch, reach, rows, row, vector * V::kLanes, memory);
    } else {
      AddCodeValues<V, kCodec, kRows, kVectors>(stretch, reach, rows, row, vector * V::kLanes, memory);
    }
  });
}

template <class V>
constexpr AttendKernels MakeAttendKernels() {
  return {PrepareRows<V>,
          {AttendStretch<V, TokenCodec::kFp16>, AttendStretch<V, TokenCodec::kInt8>,
           AttendStretch<V, TokenCodec::kInt4>, AttendStretch<V, TokenCodec::kInt4Affine>},
          {AddMass<V, TokenCodec::kFp16>, AddMass<V, TokenCodec::kInt8>, AddMass<V, TokenCodec::kInt4>,
           AddMass<V, TokenCodec::kInt4Affine>},
          ExportRows<V>};
}

}  // namespace
}  // namespace kvant::kernels
