#include <algorithm>
#include <cmath>

#include "kvant/kernels/cuda/importance.h"

namespace kvant::kernels::cuda {
namespace {

double Dot(const Half* a, const Half* b, uint32_t n) {
  double sum = 0;
  for (uint32_t i = 0; i < n; ++i) {
    sum += double{ToFloat(a[i])} * double{ToFloat(b[i])};
  }
  return sum;
}

// Logits of one query against the keys it sees; `first` is the first of them.
std::vector<double> Logits(const AttentionMass& mass, uint32_t query, uint32_t q_head, uint32_t first, uint32_t end) {
  const uint32_t q_heads = mass.num_kv_heads * mass.q_heads_per_kv_head;
  const Half* q = static_cast<const Half*>(mass.q) + (size_t{query} * q_heads + q_head) * mass.head_dim;
  const uint32_t kv_head = q_head / mass.q_heads_per_kv_head;
  std::vector<double> logits;
  for (uint32_t j = first; j < end; ++j) {
    const Half* k = static_cast<const Half*>(mass.keys) + (size_t{j} * mass.num_kv_heads + kv_head) * mass.head_dim;
    const double x = Dot(q, k, mass.head_dim) * double{mass.softmax_scale};
    const double cap = double{mass.soft_cap};
    logits.push_back(cap == 0 ? x : cap * std::tanh(x / cap));
  }
  return logits;
}

}  // namespace

void AddPairNormsRef(codec::PairLayout pairs, uint32_t head_dim, uint32_t num_heads, std::span<const Half> rows,
                     std::span<double> sums) {
  const uint32_t num_pairs = head_dim / 2;
  for (size_t row = 0; row < rows.size() / head_dim; ++row) {
    const std::span<const Half> x = rows.subspan(row * head_dim, head_dim);
    const std::span<double> of_head = sums.subspan(row % num_heads * num_pairs, num_pairs);
    for (uint32_t i = 0; i < num_pairs; ++i) {
      const bool split = pairs == codec::PairLayout::kHalfSplit;
      of_head[i] +=
          std::hypot(double{ToFloat(x[split ? i : 2 * i])}, double{ToFloat(x[split ? i + num_pairs : 2 * i + 1])});
    }
  }
}

std::vector<float> PairSaliency(std::span<const float> q_sums, std::span<const float> k_sums, uint32_t num_pairs,
                                uint64_t num_queries, uint64_t num_keys) {
  const size_t group = q_sums.size() / k_sums.size();
  std::vector<float> saliency(k_sums.size());
  for (size_t i = 0; i < saliency.size(); ++i) {
    const size_t first = i / num_pairs * group * num_pairs + i % num_pairs;  // in the first query head of this KV head
    double q = 0;
    for (size_t a = 0; a < group; ++a) {
      q += double{q_sums[first + a * num_pairs]};
    }
    q /= static_cast<double>(group) * static_cast<double>(num_queries);
    saliency[i] = static_cast<float>(q * double{k_sums[i]} / static_cast<double>(num_keys));
  }
  return saliency;
}

void AddAttentionMassRef(const AttentionMass& mass, std::span<double> sums) {
  const uint32_t q_heads = mass.num_kv_heads * mass.q_heads_per_kv_head;
  for (uint32_t query = 0; query < mass.num_queries; ++query) {
    const uint32_t position = mass.positions != nullptr ? mass.positions[query] : mass.first_position + query;
    const uint32_t end = position + 1;
    const uint32_t first = mass.window != 0 && end > mass.window ? end - mass.window : 0;
    for (uint32_t q_head = 0; q_head < q_heads; ++q_head) {
      std::vector<double> p = Logits(mass, query, q_head, first, end);
      const double most = *std::max_element(p.begin(), p.end());
      double total = 0;
      for (double& x : p) {
        x = std::exp(x - most);
        total += x;
      }
      const size_t row = size_t{q_head / mass.q_heads_per_kv_head} * mass.num_keys;
      for (uint32_t j = first; j < end; ++j) {
        sums[row + j] += p[j - first] / total;
      }
    }
  }
}

}  // namespace kvant::kernels::cuda
