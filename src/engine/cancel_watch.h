#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace kvant::engine {

/// Asks on a thread of its own whether the caller wants to stop: the sides of a session wait for the line meanwhile.
class CancelWatch {
 public:
  CancelWatch(const std::function<bool()>& cancelled, std::function<void()> cancel) {
    if (cancelled) {
      thread_ = std::jthread([cancelled, cancel = std::move(cancel)](const std::stop_token& stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any wake;  // by nothing but the stop
        while (!stop.stop_requested()) {
          if (cancelled()) {
            return cancel();
          }
          wake.wait_for(lock, stop, kInterval, [] { return false; });
        }
      });
    }
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{20};
  std::jthread thread_;  // its end is asked for and waited for when the watch is dropped
};

}  // namespace kvant::engine
