#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace kvant {

/// A fixed set of threads for loops. Idle threads sleep.
///
/// Threads  ParallelFor from one thread at a time
class ThreadPool {
 public:
  /// Requires num_threads >= 1; the caller's thread is one of them.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// Call body(index, thread) for every index in [0, count), indices handed out in order; returns when all are done.
  /// `thread` is in [0, num_threads()): use it to pick scratch memory. The body may not throw.
  void ParallelFor(size_t count, const std::function<void(size_t index, int thread)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant
