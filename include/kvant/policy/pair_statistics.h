#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/base/half.h"
#include "kvant/codec/pair_page.h"

namespace kvant::policy {

/// What a prompt says about the channels and RoPE pairs of one KV head, from the rows that attention meets: after
/// QK-norm and RoPE, which pair norms do not see. Fed in any order and in chunks of any size.
///
/// With partial rotary the pairs are those of the whole head all the same: two channels that share a width, whether
/// RoPE turns them or not. Statistics are of the stored rows, so they describe what is stored.
class PairStatistics {
 public:
  PairStatistics(codec::PairLayout pairs, uint32_t head_dim);

  /// Rows of any of the KV head's query heads; element c of row i: rows[i · stride + c].
  void AddQueries(const float* rows, size_t num_rows, size_t stride);
  void AddKeys(const Half* rows, size_t num_rows, size_t stride);
  /// Keys that would become a page of their own (or a part of one, at least one row): what each width from 1 to
  /// WidthMap::kMaxKeyBits loses. They are not added to the other statistics.
  void AddKeyErrors(codec::KeyRule rule, const Half* rows, size_t num_rows, size_t stride);

  codec::PairLayout pairs() const { return pairs_; }
  uint32_t num_pairs() const { return head_dim_ / 2; }

  /// Means over all rows so far, 0 where there were none.
  double QueryNorm(uint32_t pair) const { return Mean(query_norms_[pair], num_queries_); }
  double KeyNorm(uint32_t pair) const { return Mean(key_norms_[pair], num_keys_); }
  /// Mean squared norms.
  double QueryEnergy(uint32_t pair) const;
  double KeyEnergy(uint32_t pair) const;
  /// Sums over the pair's two channels.
  double Magnitude(uint32_t pair) const;
  double Range(uint32_t pair) const;
  double QueryTimesRange(uint32_t pair) const;       ///< Σ mean |q| · range
  double Error(uint32_t pair, uint32_t bits) const;  ///< Σ mean q² · mean squared error of the keys at that width

 private:
  static double Mean(double sum, size_t count) { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  template <typename Of>
  double SumOfChannels(uint32_t pair, Of of) const;

  codec::PairLayout pairs_;
  uint32_t head_dim_;
  size_t num_queries_ = 0;
  size_t num_keys_ = 0;
  size_t num_error_keys_ = 0;
  std::vector<double> query_norms_;  ///< [num_pairs], sums
  std::vector<double> key_norms_;
  std::vector<double> query_magnitudes_;  ///< [head_dim], sums
  std::vector<double> query_squares_;
  std::vector<double> key_magnitudes_;
  std::vector<double> key_squares_;
  std::vector<float> key_lows_;
  std::vector<float> key_highs_;
  std::vector<double> key_errors_;  ///< [head_dim][kMaxKeyBits]
};

}  // namespace kvant::policy
