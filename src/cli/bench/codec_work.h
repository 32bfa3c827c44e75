#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvant/base/buffer.h"
#include "kvant/base/thread_pool.h"
#include "kvant/kernels/rows.h"

namespace kvant::cli {

/// fp16 rows that no cache holds, the same rows in several codecs, and room to decode or copy them to.
/// Every call works on all rows.
///
/// Threads  one caller; the work of a call is split over the pool
class CodecWork {
 public:
  /// Errors  kOutOfMemory; kInternal where a kernel's bytes are not the reference's
  static Result<CodecWork> Make(std::span<const codec::TokenCodec> codecs, uint32_t head_dim, uint64_t payload_bytes,
                                const kernels::RowKernels& kernels, ThreadPool* pool);

  uint64_t payload_bytes() const { return num_rows_ * row_bytes(); }
  size_t num_codecs() const { return encoded_.size(); }
  codec::TokenCodec codec(size_t index) const { return encoded_[index].codec; }

  void Copy();
  void Encode(size_t index);
  void Decode(size_t index);

 private:
  /// All rows in one codec, as TokenRows has them.
  struct Encoded {
    codec::TokenCodec codec;
    Buffer codes;
    std::vector<Half> scales;
    std::vector<Half> zeros;
  };

  CodecWork(uint32_t head_dim, uint64_t payload_bytes, const kernels::RowKernels& kernels, ThreadPool* pool);
  static Result<Encoded> RoomFor(codec::TokenCodec codec, uint32_t head_dim, size_t num_rows);
  Status AddCodec(codec::TokenCodec codec);
  void Fill();
  Status Check(Encoded& encoded);
  size_t row_bytes() const { return head_dim_ * sizeof(Half); }
  Half* SourceRow(size_t row) { return reinterpret_cast<Half*>(source_.bytes().data()) + row * head_dim_; }
  Half* TargetRow(size_t row) { return reinterpret_cast<Half*>(target_.bytes().data()) + row * head_dim_; }
  codec::TokenRows RowsOf(Encoded& encoded, size_t first, size_t count) const;
  /// body(first row, number of rows) for pieces of all rows, over the pool.
  void ForEachPiece(const std::function<void(size_t first, size_t count)>& body);

  uint32_t head_dim_;
  size_t num_rows_;
  const kernels::RowKernels* kernels_;
  ThreadPool* pool_;
  Buffer source_;
  Buffer target_;
  std::vector<Encoded> encoded_;
};

}  // namespace kvant::cli
