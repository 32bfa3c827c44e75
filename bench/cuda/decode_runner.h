#pragma once

#include "attention_case.h"
#include "device_memory.h"

namespace kvant::cuda_test {

inline kernels::cuda::DecodeRequest RequestOf(const AttentionCase& c) {
  kernels::cuda::DecodeRequest request;
  request.shape = c.spec.shape;
  request.pair_pages = !c.maps.empty();
  request.bf16_pages = c.segments[0].format == DecodeFormat::kBf16;
  request.value_groups = c.spec.value_groups;
  request.value_bits = c.spec.value_bits;
  request.max_key_columns = c.max_key_columns;
  request.half_three_one = c.half_three_one;
  request.soft_cap = c.spec.soft_cap != 0.0F;
  return request;
}

/// A case on the GPU, ready to launch.
class DecodeRunner {
 public:
  explicit DecodeRunner(const AttentionCase& c)
      : kernel_(Must(kernels::cuda::SelectDecode(RequestOf(c)))),
        plan_(Must(
            kernels::cuda::PlanDecode(c.spec.shape, c.segments, c.sequence_segments, kernel_.costs, kernel_.grid))),
        plan_bytes_(plan_.DeviceBytes()),
        workspace_(kernels::cuda::WorkspaceOf(plan_).total_bytes()),
        q_(c.q),
        out_(c.q.size() * sizeof(float)),
        page_table_(c.page_table),
        maps_(c.maps),
        equalization_(c.equalization) {
    std::vector<std::byte> host_plan(plan_.DeviceBytes());
    plan_.CopyTo(host_plan);
    Check(cudaMemcpy(plan_bytes_.data(), host_plan.data(), host_plan.size(), cudaMemcpyHostToDevice), "plan");
    for (const HostPool& pool : c.pools) {
      pools_.push_back(std::make_unique<DeviceBuffer>(pool.bytes));
    }
    launch_.plan = plan_bytes_.data();
    launch_.workspace = workspace_.data();
    launch_.q = q_.data<float>();
    launch_.out = out_.data<float>();
    launch_.page_table = page_table_.data<uint32_t>();
    for (size_t f = 0; f < c.pools.size(); ++f) {
      const HostPool& pool = c.pools[f];
      launch_.pools[f] = {pools_[f]->data(), pool.page_bytes, pool.record_bytes, pool.page_tokens};
    }
    launch_.maps = maps_.data<kernels::cuda::PairDeviceMap>();
    launch_.equalization = c.spec.equalized ? equalization_.data() : nullptr;
    launch_.rotated_values[static_cast<size_t>(DecodeFormat::kPair)] = c.spec.rotated;
    launch_.softmax_scale = c.softmax_scale;
    launch_.soft_cap = c.spec.soft_cap;
    Must(kernels::cuda::ClearWorkspace(plan_, workspace_.data(), {}));
  }

  std::vector<float> Run() {
    out_.Fill(0xFF);
    Must(kernels::cuda::DecodeAttention(kernel_, plan_, launch_, {}));
    Check(cudaDeviceSynchronize(), "decode attention");
    return out_.Download<float>();
  }

  int kernel_id() const { return kernel_.id; }

  bool CanariesIntact() const {
    bool intact = plan_bytes_.CanariesIntact() && workspace_.CanariesIntact() && out_.CanariesIntact();
    for (const auto& pool : pools_) intact = intact && pool->CanariesIntact();
    return intact;
  }

 private:
  kernels::cuda::DecodeKernel kernel_;
  kernels::cuda::DecodePlan plan_;
  DeviceBuffer plan_bytes_;
  DeviceBuffer workspace_;
  DeviceBuffer q_;
  DeviceBuffer out_;
  DeviceBuffer page_table_;
  DeviceBuffer maps_;
  DeviceBuffer equalization_;
  std::vector<std::unique_ptr<DeviceBuffer>> pools_;
  kernels::cuda::DecodeLaunch launch_;
};

}  // namespace kvant::cuda_test
