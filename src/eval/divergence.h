#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace kvant::eval {

/// In place: logits to log probabilities. T is float or double; the sum is in double.
template <typename T>
void LogSoftmax(std::span<T> row) {
  const T largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const T x : row) {
    sum += static_cast<double>(std::exp(x - largest));
  }
  const T shift = largest + static_cast<T>(std::log(sum));
  for (T& x : row) {
    x -= shift;
  }
}

/// KL(expected ‖ actual) of two rows of log probabilities.
template <typename T>
double Divergence(std::span<const T> expected, std::span<const T> actual) {
  double kl = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto log_p = static_cast<double>(expected[i]);
    kl += std::exp(log_p) * (log_p - static_cast<double>(actual[i]));
  }
  return kl;
}

}  // namespace kvant::eval
