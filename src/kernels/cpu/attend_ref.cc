#include <algorithm>
#include <cmath>
#include <vector>

#include "kvant/base/check.h"
#include "kvant/kernels/attend.h"
#include "kvant/kernels/plain_slice.h"

namespace kvant::kernels {
namespace {

double Dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

double Capped(double logit, float cap) {
  return cap > 0.0F ? static_cast<double>(cap) * std::tanh(logit / static_cast<double>(cap)) : logit;
}

bool Sees(const AttendQueries& queries, int32_t position, int32_t token) {
  return token <= position && (queries.window == 0 || token > int64_t{position} - queries.window);
}

// Two passes over the visible tokens: the maximum, then the weighted values.
void AttendRow(const AttendQueries& queries, const float* q, int32_t position, const std::vector<PlainSlice>& slices,
               std::span<float> dst) {
  const size_t head_dim = queries.head_dim;
  std::vector<double> logits;
  std::vector<const float*> values;
  for (const PlainSlice& slice : slices) {
    for (uint32_t t = 0; t < slice.num_tokens; ++t) {
      if (Sees(queries, position, slice.positions[t])) {
        const double logit = static_cast<double>(queries.scale) * Dot(q, slice.keys.data() + t * head_dim, head_dim);
        logits.push_back(Capped(logit, queries.logit_cap));
        values.push_back(slice.values.data() + t * head_dim);
      }
    }
  }
  KVANT_CHECK(!logits.empty(), "every row sees at least its own token");
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out(head_dim, 0.0);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(logits[i] - max);
    sum += p;
    for (size_t c = 0; c < head_dim; ++c) {
      out[c] += p * static_cast<double>(values[i][c]);
    }
  }
  std::transform(out.begin(), out.end(), dst.begin(), [sum](double x) { return static_cast<float>(x / sum); });
}

}  // namespace

void AttendRef(const AttendQueries& queries, std::span<const AttendSlice> slices, std::span<float> dst) {
  KVANT_CHECK(dst.size() == size_t{queries.num_rows()} * queries.head_dim, "one output a row");
  std::vector<PlainSlice> plain;
  plain.reserve(slices.size());
  std::transform(slices.begin(), slices.end(), std::back_inserter(plain), LoadPlainSlice);
  for (uint32_t row = 0; row < queries.num_rows(); ++row) {
    const uint32_t query = row / queries.q_heads_per_kv_head;
    const uint32_t head = row % queries.q_heads_per_kv_head;
    AttendRow(queries, queries.data + query * queries.query_stride + head * queries.head_stride,
              queries.positions[query], plain, dst.subspan(size_t{row} * queries.head_dim, queries.head_dim));
  }
}

}  // namespace kvant::kernels
