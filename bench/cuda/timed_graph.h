#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device_memory.h"

/// The one frame in which everything on the GPU is timed.
namespace kvant::cuda_bench {

/// Seconds between two events around what is enqueued on the default stream.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class Enqueue>
  double Seconds(Enqueue enqueue) {
    Begin();
    enqueue();
    return End();
  }

 private:
  void Begin();
  double End();
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

/// Launches recorded once and sent at once, so that what is timed is the GPU.
class TimedGraph {
 public:
  /// `launch` enqueues launch number i on the stream.
  TimedGraph(int launches, const std::function<void(cudaStream_t, int)>& launch);
  ~TimedGraph();
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  /// Of one launch.
  double Seconds(Stopwatch& watch) const;

 private:
  int launches_;
  cudaGraphExec_t graph_ = nullptr;
};

/// Times of arms that are called in turn, A B … B A; the first round warms up and does not count.
/// Shapes  result [arms][rounds]; time(arm) gives seconds
std::vector<std::vector<double>> InTurn(size_t arms, int rounds, const std::function<double(size_t)>& time);

double Median(std::vector<double> values);

}  // namespace kvant::cuda_bench
