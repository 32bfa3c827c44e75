#include "kvant/policy/pair_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kvant/base/check.h"

namespace kvant::policy {
namespace {

using codec::PairLayout;
using codec::WidthMap;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// norms[i] += ‖(row's pair i)‖
void AddNorms(PairLayout pairs, std::span<const float> row, std::span<double> norms) {
  const size_t step = pairs == PairLayout::kInterleaved ? 2 : 1;
  const size_t other = pairs == PairLayout::kInterleaved ? 1 : norms.size();
  for (size_t i = 0; i < norms.size(); ++i) {
    const float a = row[i * step];
    const float b = row[i * step + other];
    norms[i] += static_cast<double>(std::sqrt(a * a + b * b));
  }
}

void AddMoments(std::span<const float> row, std::span<double> magnitudes, std::span<double> squares) {
  for (size_t c = 0; c < row.size(); ++c) {
    magnitudes[c] += static_cast<double>(std::fabs(row[c]));
    squares[c] += static_cast<double>(row[c] * row[c]);
  }
}

}  // namespace

PairStatistics::PairStatistics(PairLayout pairs, uint32_t head_dim)
    : pairs_(pairs),
      head_dim_(head_dim),
      query_norms_(head_dim / 2),
      key_norms_(head_dim / 2),
      query_magnitudes_(head_dim),
      query_squares_(head_dim),
      key_magnitudes_(head_dim),
      key_squares_(head_dim),
      key_lows_(head_dim, kInfinity),
      key_highs_(head_dim, -kInfinity),
      key_errors_(size_t{head_dim} * WidthMap::kMaxKeyBits) {
  KVANT_CHECK(head_dim > 0 && head_dim % 2 == 0, "channels come in pairs");
}

void PairStatistics::AddQueries(const float* rows, size_t num_rows, size_t stride) {
  for (size_t i = 0; i < num_rows; ++i) {
    const std::span row(rows + i * stride, head_dim_);
    AddNorms(pairs_, row, query_norms_);
    AddMoments(row, query_magnitudes_, query_squares_);
  }
  num_queries_ += num_rows;
}

void PairStatistics::AddKeys(const Half* rows, size_t num_rows, size_t stride) {
  std::vector<float> row(head_dim_);
  for (size_t i = 0; i < num_rows; ++i) {
    ToFloat(std::span(rows + i * stride, head_dim_), row);
    AddNorms(pairs_, row, key_norms_);
    AddMoments(row, key_magnitudes_, key_squares_);
    for (uint32_t c = 0; c < head_dim_; ++c) {
      key_lows_[c] = std::min(key_lows_[c], row[c]);
      key_highs_[c] = std::max(key_highs_[c], row[c]);
    }
  }
  num_keys_ += num_rows;
}

void PairStatistics::AddKeyErrors(codec::KeyRule rule, const Half* rows, size_t num_rows, size_t stride) {
  std::vector<float> column(num_rows);
  for (uint32_t c = 0; c < head_dim_; ++c) {
    for (size_t i = 0; i < num_rows; ++i) {
      column[i] = ToFloat(rows[i * stride + c]);
    }
    for (uint32_t bits = 1; bits <= WidthMap::kMaxKeyBits; ++bits) {
      key_errors_[c * WidthMap::kMaxKeyBits + bits - 1] += codec::KeyGroupError(rule, bits, column);
    }
  }
  num_error_keys_ += num_rows;
}

template <typename Of>
double PairStatistics::SumOfChannels(uint32_t pair, Of of) const {
  return pairs_ == PairLayout::kInterleaved ? of(2 * pair) + of(2 * pair + 1) : of(pair) + of(pair + head_dim_ / 2);
}

double PairStatistics::QueryEnergy(uint32_t pair) const {
  return SumOfChannels(pair, [&](uint32_t c) { return Mean(query_squares_[c], num_queries_); });
}

double PairStatistics::KeyEnergy(uint32_t pair) const {
  return SumOfChannels(pair, [&](uint32_t c) { return Mean(key_squares_[c], num_keys_); });
}

double PairStatistics::Magnitude(uint32_t pair) const {
  return SumOfChannels(pair, [&](uint32_t c) { return Mean(key_magnitudes_[c], num_keys_); });
}

double PairStatistics::Range(uint32_t pair) const {
  return num_keys_ == 0
             ? 0.0
             : SumOfChannels(pair, [&](uint32_t c) { return static_cast<double>(key_highs_[c] - key_lows_[c]); });
}

double PairStatistics::QueryTimesRange(uint32_t pair) const {
  return num_keys_ == 0 ? 0.0 : SumOfChannels(pair, [&](uint32_t c) {
    return Mean(query_magnitudes_[c], num_queries_) * static_cast<double>(key_highs_[c] - key_lows_[c]);
  });
}

double PairStatistics::Error(uint32_t pair, uint32_t bits) const {
  return SumOfChannels(pair, [&](uint32_t c) {
    return Mean(query_squares_[c], num_queries_) *
           Mean(key_errors_[c * WidthMap::kMaxKeyBits + bits - 1], num_error_keys_);
  });
}

}  // namespace kvant::policy
