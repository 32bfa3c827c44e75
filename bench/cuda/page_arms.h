#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention_case.h"
#include "device_memory.h"
#include "kvant/kernels/cuda/measure.h"

/// What turns rows into pages and back, ready to be timed: each arm over the same keys and values.
namespace kvant::cuda_bench {

using cuda_test::DeviceBuffer;

struct PageArm {
  std::string name;
  uint64_t bytes;  ///< fp16 bytes encoded, decoded or read
  uint64_t moved;
  std::function<Status()> run;
  std::function<bool()> equals_reference;  ///< after a run
};

/// Keys and values of many tokens, and everything that arms keep.
class PageMemory {
 public:
  explicit PageMemory(const kernels::cuda::CodecMeasurement& wanted);

  PageArm Copy();
  PageArm Pack(const std::string& name, const codec::WidthMap& map, uint32_t value_bits, codec::PairRule rule);
  PageArm Store(codec::TokenCodec codec, bool equalized);
  std::vector<PageArm> Rows(codec::TokenCodec codec);  ///< encode, decode
  PageArm Norms();
  PageArm Mass(const std::string& name, uint32_t num_queries, uint32_t num_keys);

 private:
  static constexpr size_t kPattern = size_t{1} << 21;  // halves that repeat
  size_t row() const { return size_t{heads_} * d_; }
  size_t side_bytes() const { return size_t{pages_} * 128 * row() * 2; }
  std::byte* Keep(size_t bytes);
  template <typename T>
  T* Upload(const std::vector<T>& host) {
    kept_.push_back(std::make_unique<DeviceBuffer>(host));
    return kept_.back()->template data<T>();
  }
  std::unique_ptr<DeviceBuffer> Repeat(const std::vector<Half>& pattern) const;

  uint32_t d_;
  uint32_t heads_;
  uint32_t pages_;
  std::vector<Half> host_keys_;
  std::vector<Half> host_values_;
  std::unique_ptr<DeviceBuffer> keys_;
  std::unique_ptr<DeviceBuffer> values_;
  std::unique_ptr<DeviceBuffer> copy_;
  std::vector<std::unique_ptr<DeviceBuffer>> kept_;
};

}  // namespace kvant::cuda_bench
