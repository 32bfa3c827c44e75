#include <algorithm>

#include "timed_graph.h"

namespace kvant::cuda_bench {

using cuda_test::Check;

Stopwatch::Stopwatch() {
  Check(cudaEventCreate(&begin_), "event");
  Check(cudaEventCreate(&end_), "event");
}
Stopwatch::~Stopwatch() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}
void Stopwatch::Begin() { Check(cudaEventRecord(begin_), "event"); }
double Stopwatch::End() {
  float ms = 0;
  Check(cudaEventRecord(end_), "event");
  Check(cudaEventSynchronize(end_), "what was timed");
  Check(cudaEventElapsedTime(&ms, begin_, end_), "event");
  return double{ms} * 1e-3;
}

TimedGraph::TimedGraph(int launches, const std::function<void(cudaStream_t, int)>& launch) : launches_(launches) {
  cudaStream_t stream;
  cudaGraph_t graph;
  Check(cudaStreamCreate(&stream), "stream");
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < launches; ++i) launch(stream, i);
  Check(cudaStreamEndCapture(stream, &graph), "capture");
  Check(cudaGraphInstantiate(&graph_, graph, 0), "graph");
  Check(cudaGraphDestroy(graph), "graph");
  Check(cudaStreamDestroy(stream), "stream");
}
TimedGraph::~TimedGraph() { cudaGraphExecDestroy(graph_); }

double TimedGraph::Seconds(Stopwatch& watch) const {
  return watch.Seconds([&] { Check(cudaGraphLaunch(graph_, nullptr), "graph"); }) / launches_;
}

std::vector<std::vector<double>> InTurn(size_t arms, int rounds, const std::function<double(size_t)>& time) {
  std::vector<std::vector<double>> times(arms);
  for (int round = 0; round <= rounds; ++round) {
    for (size_t k = 0; k < arms; ++k) {
      const size_t arm = round % 2 == 0 ? k : arms - 1 - k;
      const double seconds = time(arm);
      if (round > 0) times[arm].push_back(seconds);
    }
  }
  return times;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace kvant::cuda_bench
