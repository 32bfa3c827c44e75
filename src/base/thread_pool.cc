#include "kvant/base/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "kvant/base/check.h"

namespace kvant {

struct ThreadPool::Impl {
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::vector<std::thread> threads;
  const std::function<void(size_t, int)>* body = nullptr;
  size_t count = 0;
  std::atomic<size_t> next{0};
  uint64_t generation = 0;
  int num_busy = 0;
  bool stopping = false;

  void Drain(int thread) {
    for (size_t index = next.fetch_add(1); index < count; index = next.fetch_add(1)) {
      (*body)(index, thread);
    }
  }

  void Run(int thread) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      work_ready.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) {
        return;
      }
      seen = generation;
      lock.unlock();
      Drain(thread);
      lock.lock();
      if (--num_busy == 0) {
        work_done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  KVANT_CHECK(num_threads >= 1, "the caller's thread counts as one");
  for (int thread = 1; thread < num_threads; ++thread) {
    impl_->threads.emplace_back([this, thread] { impl_->Run(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->work_ready.notify_all();
  for (std::thread& thread : impl_->threads) {
    thread.join();
  }
}

int ThreadPool::num_threads() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::ParallelFor(size_t count, const std::function<void(size_t, int)>& body) {
  if (impl_->threads.empty() || count <= 1) {
    for (size_t index = 0; index < count; ++index) {
      body(index, 0);
    }
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->body = &body;
    impl_->count = count;
    impl_->next = 0;
    impl_->num_busy = static_cast<int>(impl_->threads.size());
    ++impl_->generation;
  }
  impl_->work_ready.notify_all();
  impl_->Drain(0);
  std::unique_lock lock(impl_->mutex);
  impl_->work_done.wait(lock, [&] { return impl_->num_busy == 0; });
}

}  // namespace kvant
