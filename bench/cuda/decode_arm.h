#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "decode_runner.h"
#include "kvant/kernels/cuda/measure.h"
#include "timed_graph.h"

namespace kvant::cuda_bench {

using cuda_test::AttentionCase;
using cuda_test::DecodeFormat;
using cuda_test::DeviceBuffer;

/// What an attention arm stores.
struct FormatSpec {
  std::string name;
  DecodeFormat format = DecodeFormat::kFp16;
  codec::WidthMap map = {};  ///< pair pages
  uint32_t value_bits = 2;
  uint32_t value_groups = 1;
  bool fixed_steps = true;       ///< the kernel with the map's constants, where there is one
  double alu_cycles_a_page = 0;  ///< of one multiprocessor, counted in the kernel's code; 0: not counted
};
std::vector<FormatSpec> AllFormats(uint32_t head_dim);

/// One format at one batch: pools larger than any cache, a plan, and a graph of launches over all of them in turn.
class DecodeArm {
 public:
  /// Errors  DeviceError: the sample's attention is not within 3e-3 of the reference
  DecodeArm(const FormatSpec& format, kernels::cuda::BatchKind kind, const kernels::cuda::AttentionMeasurement& wanted);

  double Seconds(Stopwatch& watch) const { return graph_->Seconds(watch); }
  /// A read of as many bytes, over the arm's largest pool, launched the same way.
  double ReadSeconds(Stopwatch& watch) const { return read_->Seconds(watch); }
  const std::string& name() const { return name_; }
  size_t bytes() const { return bytes_; }
  double error() const { return error_; }
  double alu_cycles() const { return alu_cycles_; }

 private:
  void Check(const AttentionCase& sample);
  void LayOut(const FormatSpec& format, const std::vector<uint32_t>& lengths, const AttentionCase& sample);
  std::vector<std::vector<uint32_t>> PageTables(bool shuffled) const;
  void MakePools(const AttentionCase& sample);
  void Record(const AttentionCase& sample, const std::vector<std::vector<uint32_t>>& tables);
  void RecordRead();
  std::byte* Upload(std::unique_ptr<DeviceBuffer> buffer);

  std::string name_;
  kernels::cuda::DecodeShape shape_;
  kernels::cuda::DecodeKernel kernel_;
  std::vector<cuda_test::DecodeSegment> segments_;
  std::vector<uint32_t> borders_;
  std::vector<size_t> owners_;  // format of every entry of the page table
  std::array<uint32_t, kernels::cuda::kNumDecodeFormats> pages_{};
  uint32_t rotations_ = 0;
  int launches_ = 0;
  size_t bytes_ = 0;
  double error_ = 0;
  double alu_cycles_ = 0;
  kernels::cuda::DecodePlan plan_;
  std::vector<std::unique_ptr<DeviceBuffer>> pools_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  size_t biggest_ = 0;
  std::unique_ptr<TimedGraph> graph_;
  std::unique_ptr<TimedGraph> read_;
};

}  // namespace kvant::cuda_bench
