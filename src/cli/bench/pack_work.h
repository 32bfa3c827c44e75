#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvant/base/buffer.h"
#include "kvant/base/thread_pool.h"
#include "kvant/codec/pair_precision.h"
#include "kvant/kernels/pair_pages.h"

namespace kvant::cli {

/// fp16 keys and values that no cache holds, and pages that they become. Every call works on all of them.
///
/// Threads  one caller; the work of a call is split over the pool
class PackWork {
 public:
  /// Errors  kOutOfMemory; kInvalidArgument, kModelUnsupported: a precision that the head dimension cannot have;
  ///         kInternal where a page is not the reference's
  static Result<PackWork> Make(std::span<const codec::PairPrecision> precisions, uint32_t head_dim,
                               uint64_t payload_bytes, kernels::Isa isa, ThreadPool* pool);

  uint64_t payload_bytes() const { return source_.size(); }
  size_t num_precisions() const { return packed_.size(); }
  uint64_t packed_bytes(size_t index) const { return packed_[index].pages.size(); }
  void Copy();
  void Pack(size_t index);

 private:
  struct Packed {
    std::unique_ptr<kernels::PairPlan> plan;
    Buffer pages;
  };
  /// 128 tokens' keys, then their values: what becomes one page, or two or four.
  size_t block_halves() const { return size_t{2} * kBlockTokens * head_dim_; }
  size_t num_blocks() const { return source_.size() / sizeof(Half) / block_halves(); }
  void PackBlock(Packed& packed, size_t block);
  Status Add(const codec::PairPrecision& precision);

  static constexpr uint32_t kBlockTokens = 128;
  uint32_t head_dim_ = 0;
  kernels::Isa isa_{};
  ThreadPool* pool_ = nullptr;
  Buffer source_;
  Buffer target_;
  std::vector<Packed> packed_;
};

}  // namespace kvant::cli
