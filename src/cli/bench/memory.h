#pragma once

#include <cstdint>
#include <vector>

#include "cli/command.h"
#include "kvant/base/buffer.h"
#include "kvant/base/half.h"
#include "kvant/base/status.h"
#include "kvant/base/thread_pool.h"

namespace kvant::cli {

/// What a bench that reads memory is given: how much of it, and how often.
struct MemoryFlags {
  uint64_t megabytes = 0;  ///< of each format; 0: as much as no cache holds
  bool quick = false;

  /// `usual` or `quick_usual` bytes, or twice the last cache level's size where that is more; what the user said wins.
  uint64_t BytesOfFormat(uint64_t usual, uint64_t quick_usual) const;
};
/// --memory-mb, --quick.
void AddMemoryFlags(CLI::App& command, MemoryFlags& flags);

/// Random fp16 values, normal with the given deviation; the same for the same seed.
std::vector<Half> RandomHalves(size_t count, float deviation, uint32_t seed);

/// How fast memory can be read: sums over a buffer that no cache holds, one stream a thread.
///
/// Threads  one caller of Read
class ReadProbe {
 public:
  /// Errors  kOutOfMemory
  static Result<ReadProbe> Allocate(uint64_t bytes, ThreadPool* pool);

  /// Read the next part of the buffer.
  void Read(uint32_t round);
  uint64_t bytes_per_call() const { return share_ * sums_.size(); }

 private:
  static constexpr uint32_t kParts = 8;
  ReadProbe(Buffer memory, ThreadPool* pool);

  Buffer memory_;
  ThreadPool* pool_;
  std::vector<uint64_t> sums_;  ///< one a thread, kept so that the reads are not left out
  size_t share_;                ///< bytes a thread reads in a call
};

}  // namespace kvant::cli
