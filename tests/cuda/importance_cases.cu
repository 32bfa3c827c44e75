#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "device_memory.h"
#include "kvant/kernels/cuda/importance.h"
#include "pack_cases.h"

namespace kvant::cuda_test {
namespace {

using kernels::cuda::AttentionMass;

CaseCount g_count;
CaseFilter* g_filter = nullptr;

std::vector<Half> Rows(size_t count, uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> rows(count);
  for (size_t i = 0; i < count; ++i) rows[i] = ToHalf(spread * normal(random) + (i % 31 == 4 ? 1.0F : 0.0F));
  return rows;
}

// Largest difference, over the largest number expected.
double ErrorOf(const std::vector<float>& got, const std::vector<double>& expected) {
  double worst = 0;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    worst = std::max(worst, std::fabs(double{got[i]} - expected[i]));
    largest = std::max(largest, std::fabs(expected[i]));
  }
  return worst / largest;
}

void Report(const std::string& name, double error, double most, bool intact) {
  const bool ok = error <= most && intact;
  ++g_count.cases;
  if (!ok) ++g_count.failures;
  std::printf("%s %-64s max error %.2e of the largest%s\n", ok ? "ok  " : "FAIL", name.c_str(), error,
              intact ? "" : ", canary overwritten");
}

void Norms(codec::PairLayout pairs, uint32_t d, uint32_t heads, const std::vector<size_t>& chunks) {
  std::string name = std::string("pair norms ") +
                     (pairs == codec::PairLayout::kHalfSplit ? "half-split" : "interleaved") +
                     " d=" + std::to_string(d) + " heads=" + std::to_string(heads) + " rows";
  for (const size_t rows : chunks) name += " " + std::to_string(rows);
  if (!g_filter->Wants(name) || !g_filter->IsNew(name)) return;
  const DeviceBuffer sums(heads * d / 2 * sizeof(float));
  std::vector<double> expected(heads * d / 2);
  bool intact = true;
  for (const size_t rows : chunks) {
    const std::vector<Half> x = Rows(rows * heads * d, static_cast<uint32_t>(rows), 1.0F);
    const DeviceBuffer device(x);
    const DeviceBuffer workspace(kernels::cuda::PairNormsWorkspace(d, heads, rows));
    const kernels::cuda::PairNorms norms{d, heads, pairs, device.data(), rows, sums.data<float>(), workspace.data()};
    const bool ok = RunCaptured([&](kernels::cuda::Stream s) { return AddPairNorms(norms, s); });
    Check(cudaDeviceSynchronize(), name.c_str());
    kernels::cuda::AddPairNormsRef(pairs, d, heads, x, expected);
    intact = intact && ok && workspace.CanariesIntact();
  }
  Report(name, ErrorOf(sums.Download<float>(), expected), 1e-5, intact && sums.CanariesIntact());
}

struct MassSpec {
  std::string name;
  uint32_t head_dim;
  uint32_t group;
  uint32_t num_keys;
  std::vector<uint32_t> positions;
  bool listed = false;  ///< positions are passed; else they follow each other
  uint32_t window = 0;
  float soft_cap = 0.0F;
};

std::vector<uint32_t> Range(uint32_t first, uint32_t end) {
  std::vector<uint32_t> positions(end - first);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

void Mass(const MassSpec& spec) {
  const std::string name = "attention mass " + spec.name + " d=" + std::to_string(spec.head_dim) +
                           " gqa=" + std::to_string(spec.group) + " keys=" + std::to_string(spec.num_keys) +
                           " queries=" + std::to_string(spec.positions.size());
  if (!g_filter->Wants(name) || !g_filter->IsNew("mass " + spec.name + std::to_string(spec.head_dim))) return;
  constexpr uint32_t kHeads = 2;
  const auto num_queries = static_cast<uint32_t>(spec.positions.size());
  const std::vector<Half> q = Rows(size_t{num_queries} * kHeads * spec.group * spec.head_dim, 1, 1.5F);
  const std::vector<Half> keys = Rows(size_t{spec.num_keys} * kHeads * spec.head_dim, 2, 1.0F);
  AttentionMass call;
  call.head_dim = spec.head_dim;
  call.num_kv_heads = kHeads;
  call.q_heads_per_kv_head = spec.group;
  call.q = q.data();
  call.positions = spec.listed ? spec.positions.data() : nullptr;
  call.first_position = spec.positions[0];
  call.num_queries = num_queries;
  call.keys = keys.data();
  call.num_keys = spec.num_keys;
  call.softmax_scale = 1.0F / std::sqrt(static_cast<float>(spec.head_dim));
  call.soft_cap = spec.soft_cap;
  call.window = spec.window;
  std::vector<double> expected(size_t{kHeads} * spec.num_keys, 0.5);
  AddAttentionMassRef(call, expected);

  const DeviceBuffer device_q(q);
  const DeviceBuffer device_keys(keys);
  const DeviceBuffer device_positions(spec.positions);
  const DeviceBuffer mass(std::vector<float>(expected.size(), 0.5F));
  const DeviceBuffer workspace(AttentionMassWorkspace(call));
  call.q = device_q.data();
  call.keys = device_keys.data();
  call.positions = spec.listed ? device_positions.data<uint32_t>() : nullptr;
  call.mass = mass.data<float>();
  call.workspace = workspace.data();
  const bool ok = RunCaptured([&](kernels::cuda::Stream s) { return AddAttentionMass(call, s); });
  Check(cudaDeviceSynchronize(), name.c_str());
  Report(name, ErrorOf(mass.Download<float>(), expected), 1e-3,
         ok && mass.CanariesIntact() && workspace.CanariesIntact());
}

}  // namespace

CaseCount RunImportanceCases(CaseFilter& filter) {
  g_filter = &filter;
  g_count = {};
  for (const uint32_t d : {64U, 128U, 256U}) {
    for (const codec::PairLayout pairs : {codec::PairLayout::kHalfSplit, codec::PairLayout::kInterleaved}) {
      Norms(pairs, d, 3, {1});
      Norms(pairs, d, 5, {513, 31, 2000});
    }
    for (const uint32_t n : {97U, 1U, 31U, 129U, 300U}) Mass({"whole prompt", d, 2, n, Range(0, n)});
    Mass({"second chunk", d, 4, 300, Range(190, 300)});
    Mass({"sampled queries", d, 7, 1100, {3, 64, 65, 700, 701, 899, 1099}, true});
    Mass({"window 50", d, 2, 400, Range(0, 400), false, 50});
    Mass({"window 200 of sampled queries", d, 2, 900, {0, 10, 250, 640, 641, 899}, true, 200});
    Mass({"soft cap 5", d, 3, 200, Range(0, 200), false, 0, 5.0F});
  }
  return g_count;
}

}  // namespace kvant::cuda_test
