#pragma once

#include "kernels/cpu/attend_common.h"
#include "kernels/cpu/rotate_values.h"

// What the two ways to attend to pair pages (attend_pair.h, attend_pair_avx512.cc) share.
namespace kvant::kernels {
namespace {

inline void PreparePairRows(const RowSource& source, const PairTask& task, RowBlock& rows) {
  for (uint32_t row = 0; row < source.num_rows; ++row) {
    float* q = rows.pair.q + size_t{row} * task.head_dim;
    for (uint32_t place = 0; place < task.head_dim; ++place) {
      q[place] = source.rows[row][task.order[place]] * source.scale;
    }
  }
}

/// Halves by channel to the page's key scales and zeros by place, of codes with their highest bit at bit 3.
template <class V, class PlaceHalves>
void LoadKeyParams(const PairTask& task, const PlaceHalves& place_halves, PairMemory& pairs) {
  place_halves(task, task.page + task.key_scales, pairs.key_scale);
  place_halves(task, task.page + task.key_zeros, pairs.key_zero);
  for (uint32_t place = 0; place < task.head_dim; place += V::kLanes) {
    float* scale = pairs.key_scale + place;
    V::Store(scale, V::Mul(V::Load(scale), V::Load(task.units + place)));
  }
}

/// A group's parameters, one token after the other; tokens that the page does not have get 0.
inline const Half* TokenParams(const PairTask& task, size_t offset, uint32_t group, Half* copy) {
  const auto* at = reinterpret_cast<const Half*>(task.page + offset) + group;
  if (task.value_groups == 1 && task.page_tokens == kStretchTokens) {
    return at;
  }
  for (uint32_t t = 0; t < kStretchTokens; ++t) {
    copy[t] = t < task.page_tokens ? at[size_t{t} * task.value_groups] : Half{};
  }
  return copy;
}

/// Hides what a row does not see; its largest logit, or -infinity. token_at: of each position.
template <class V, class TokenAt>
float MaskPairRow(uint32_t hidden, uint32_t visible, uint32_t positions, const TokenAt& token_at, float* p) {
  if (hidden > 0 || visible < positions) {
    for (uint32_t i = 0; i < positions; ++i) {
      const uint32_t token = token_at(i);
      p[i] = token >= hidden && token < visible ? p[i] : -__builtin_inff();
    }
  }
  auto largest = V::Set(-__builtin_inff());
  for (uint32_t i = 0; i < positions; i += V::kLanes) {
    largest = V::Max(largest, V::Load(p + i));
  }
  return V::Largest(largest);
}

/// A row's sums over values, in channel order, are completed by those of zeros, turned back if `rotated`, and added to
/// RowBlock::out.
template <class V>
void FinishPairRow(const PairTask& task, bool rotated, uint32_t row, float* sums, RowBlock& rows) {
  const float* zeros = rows.pair.zero + size_t{row} * task.value_groups * kMaxLanes;
  for (uint32_t g = 0; g < task.value_groups; ++g) {
    float sum = 0.0F;
    for (uint32_t i = 0; i < kMaxLanes; i += V::kLanes) {
      sum += V::Sum(V::Load(zeros + g * kMaxLanes + i));
    }
    const auto zero = V::Set(sum);
    for (uint32_t c = g * task.value_group; c < (g + 1) * task.value_group; c += V::kLanes) {
      V::Store(sums + c, V::Add(V::Load(sums + c), zero));
    }
  }
  if (rotated) {
    RotateValues(task.head_dim, sums);
  }
  float* out = rows.out + size_t{row} * rows.out_channels;
  for (uint32_t c = 0; c < task.head_dim; c += V::kLanes) {
    V::Store(out + c, V::Add(V::Load(out + c), V::Load(sums + c)));
  }
}

}  // namespace
}  // namespace kvant::kernels
