// Decode attention over every format, interleaved, cold L2 by rotation, beside a plain read of the same bytes.
//   kvant_cuda_bench [--shapes 1x8192,8x32768] [--arms fp16,pnmix] [--repeats 7] [--shuffled] [--ragged]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bulk_read.cuh"
#include "decode_runner.h"

namespace kvant::cuda_bench {
namespace {

using namespace kvant::cuda_test;  // NOLINT: the bench is made of the test's parts
using kernels::cuda::DecodePlan;

constexpr DecodeShape kShape{128, 8, 8};
constexpr size_t kColdBytes = size_t{320} << 20;  // more than five times the L2 of an H200

struct Options {
  std::vector<std::pair<uint32_t, uint32_t>> shapes;
  std::vector<std::string> arms;
  int repeats = 7;
  bool shuffled = false;
  bool ragged = false;
  // The planner's costs, to be tried out; negative: the kernel's own.
  int overhead = -1;
  int fine_below = -1;
  int least_bytes = -1;
};

struct ArmSpec {
  std::string name;
  DecodeFormat format;
  codec::WidthMap map;
  uint32_t value_bits = 2;
};

std::vector<ArmSpec> AllArms() {
  codec::WidthMap four_one = HalfThreeOne(128, 3);
  uint32_t wide = 0;
  for (uint8_t& width : four_one.widths) width = width == 3 && wide++ < 22 ? 4 : 1;
  return {{"fp16", DecodeFormat::kFp16, {}},
          {"int8", DecodeFormat::kInt8, {}},
          {"int4", DecodeFormat::kInt4, {}},
          {"int4-affine", DecodeFormat::kInt4Affine, {}},
          {"pnmix", DecodeFormat::kPair, HalfThreeOne(128, 1)},
          {"pnmix-4/1@35%", DecodeFormat::kPair, four_one},
          {"uniform2", DecodeFormat::kPair, UniformMap(128, 2)},
          {"pairs:2.0", DecodeFormat::kPair, MixedMap(128, 2.0, 8)},
          {"pnmix v=3", DecodeFormat::kPair, HalfThreeOne(128, 1), 3},
          {"pnmix v=4", DecodeFormat::kPair, HalfThreeOne(128, 1), 4},
          {"pairs:2.0 v=4", DecodeFormat::kPair, MixedMap(128, 2.0, 8), 4}};
}

std::vector<SegmentSpec> SequenceOf(const ArmSpec& arm, uint32_t tokens) {
  if (arm.format != DecodeFormat::kPair) return {{arm.format, tokens, 0}};
  const uint32_t pages = (tokens - std::min(tokens, 32U)) / 128 * 128;
  if (pages == 0) return {{DecodeFormat::kFp16, tokens, 0}};
  return {{DecodeFormat::kFp16, tokens - pages, 0}, {DecodeFormat::kPair, pages, 0}};
}

CaseSpec SpecOf(const ArmSpec& arm, std::vector<uint32_t> lengths) {
  CaseSpec spec{arm.name, kShape, {}};
  for (const uint32_t n : lengths) spec.sequences.push_back(SequenceOf(arm, n));
  if (arm.format == DecodeFormat::kPair) spec.maps = {arm.map};
  spec.value_bits = arm.value_bits;
  return spec;
}

double ErrorOf(const std::vector<float>& got, const std::vector<float>& expected) {
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::fabs(double{expected[i]}));
    worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(double{got[i]} - double{expected[i]}) : INFINITY);
  }
  return worst / largest;
}

// Lengths of a batch; ragged: 1 : 64 with the same total.
std::vector<uint32_t> Lengths(uint32_t batch, uint32_t tokens, bool ragged) {
  std::vector<uint32_t> lengths(batch, tokens);
  if (!ragged || batch == 1) return lengths;
  double sum = 0;
  for (uint32_t i = 0; i < batch; ++i) sum += 1.0 + 63.0 * i / (batch - 1);
  for (uint32_t i = 0; i < batch; ++i) {
    lengths[i] = static_cast<uint32_t>((1.0 + 63.0 * i / (batch - 1)) / sum * batch * tokens);
  }
  return lengths;
}

/// One arm at one shape: pools larger than the L2, a plan, and a graph of launches over all of them in turn.
class Arm {
 public:
  Arm(const ArmSpec& arm, const std::vector<uint32_t>& lengths, const Options& options) : name_(arm.name) {
    const AttentionCase sample = MakeCase(SpecOf(arm, {700, 1500}));
    error_ = ErrorOf(DecodeRunner(sample).Run(), sample.expected);
    kernel_ = Must(kernels::cuda::SelectDecode(RequestOf(sample)));
    kernels::cuda::DecodeCosts& costs = kernel_.costs;
    if (options.overhead >= 0) costs.tile_overhead = static_cast<uint32_t>(options.overhead);
    if (options.fine_below >= 0) costs.fine_below = static_cast<uint32_t>(options.fine_below);
    if (options.least_bytes >= 0) costs.least_bytes = static_cast<uint32_t>(options.least_bytes);
    LayOut(arm, lengths, sample);
    std::vector<std::vector<uint32_t>> tables = PageTables(options.shuffled);
    MakePools(sample);
    Record(sample, tables);
  }
  ~Arm() { cudaGraphExecDestroy(graph_); }
  Arm(const Arm&) = delete;
  Arm& operator=(const Arm&) = delete;

  cudaGraphExec_t graph() const { return graph_; }
  int launches() const { return launches_; }
  size_t bytes() const { return bytes_; }
  double error() const { return error_; }
  const std::string& name() const { return name_; }
  const std::byte* biggest_pool() const { return pools_[biggest_]->data(); }
  size_t pool_size() const { return pools_[biggest_]->size(); }

 private:
  void LayOut(const ArmSpec& arm, const std::vector<uint32_t>& lengths, const AttentionCase& sample) {
    borders_.push_back(0);
    for (const uint32_t n : lengths) {
      for (const SegmentSpec& spec : SequenceOf(arm, n)) {
        const auto f = static_cast<size_t>(spec.format);
        const uint32_t page_tokens = sample.pools[f].page_tokens;
        segments_.push_back({spec.format, spec.num_tokens, 0, table_size_, spec.format == DecodeFormat::kPair
                                                                            ? 0U : kernels::cuda::DecodeRun::kNone});
        const uint32_t pages = (spec.num_tokens + page_tokens - 1) / page_tokens;
        for (uint32_t i = 0; i < pages; ++i) owners_.push_back(f);
        table_size_ += pages;
        pages_[f] += pages;
        bytes_ += spec.format == DecodeFormat::kPair
                      ? sample.pools[f].page_bytes * pages
                      : size_t{(spec.num_tokens + 15) / 16} * 8 *
                            kernels::cuda::TokenTileBytes(static_cast<codec::TokenCodec>(f), 128);
      }
      borders_.push_back(static_cast<uint32_t>(segments_.size()));
    }
    rotations_ = static_cast<uint32_t>(std::clamp<size_t>(kColdBytes / bytes_ + 1, 2, 128));
    launches_ = static_cast<int>(std::max(rotations_, bytes_ < (size_t{1} << 30) ? 16U : 2U));
    plan_ = Must(kernels::cuda::PlanDecode(kShape, segments_, borders_, kernel_.costs, kernel_.grid));
  }

  std::vector<std::vector<uint32_t>> PageTables(bool shuffled) const {
    std::array<std::vector<uint32_t>, kernels::cuda::kNumDecodeFormats> order;
    std::mt19937 random(3);
    for (size_t f = 0; f < order.size(); ++f) {
      order[f].resize(size_t{pages_[f]} * rotations_);
      std::iota(order[f].begin(), order[f].end(), 0U);
      if (shuffled) std::shuffle(order[f].begin(), order[f].end(), random);
    }
    std::vector<std::vector<uint32_t>> tables(rotations_);
    std::array<size_t, kernels::cuda::kNumDecodeFormats> next{};
    for (auto& table : tables) {
      for (const size_t f : owners_) table.push_back(order[f][next[f]++]);
    }
    return tables;
  }

  // The sample's pages, over and over.
  void MakePools(const AttentionCase& sample) {
    for (size_t f = 0; f < sample.pools.size(); ++f) {
      const HostPool& pool = sample.pools[f];
      const size_t wanted = size_t{pages_[f]} * rotations_ * pool.page_bytes;
      pools_.push_back(std::make_unique<DeviceBuffer>(std::max(wanted, size_t{16})));
      if (wanted == 0) continue;
      size_t have = std::min(wanted, pool.bytes.size());
      Check(cudaMemcpy(pools_[f]->data(), pool.bytes.data(), have, cudaMemcpyHostToDevice), "pool");
      while (have < wanted) {
        const size_t more = std::min(have, wanted - have);
        Check(cudaMemcpy(pools_[f]->data() + have, pools_[f]->data(), more, cudaMemcpyDeviceToDevice), "pool");
        have += more;
      }
      if (wanted > pools_[biggest_]->size()) biggest_ = f;
    }
  }

  void Record(const AttentionCase& sample, const std::vector<std::vector<uint32_t>>& tables) {
    std::vector<std::byte> host_plan(plan_.DeviceBytes());
    plan_.CopyTo(host_plan);
    const size_t q_floats = (borders_.size() - 1) * kShape.num_q_heads() * kShape.head_dim;
    std::vector<float> q(q_floats);
    for (size_t i = 0; i < q.size(); ++i) q[i] = sample.q[i % sample.q.size()];
    buffers_.push_back(std::make_unique<DeviceBuffer>(host_plan));
    buffers_.push_back(std::make_unique<DeviceBuffer>(kernels::cuda::WorkspaceOf(plan_).total_bytes()));
    buffers_.push_back(std::make_unique<DeviceBuffer>(q));
    buffers_.push_back(std::make_unique<DeviceBuffer>(q_floats * 4));
    buffers_.push_back(std::make_unique<DeviceBuffer>(sample.maps));
    kernels::cuda::DecodeLaunch launch;
    launch.plan = buffers_[0]->data();
    launch.workspace = buffers_[1]->data();
    launch.q = buffers_[2]->data<float>();
    launch.out = buffers_[3]->data<float>();
    launch.maps = buffers_[4]->data<kernels::cuda::PairDeviceMap>();
    launch.softmax_scale = sample.softmax_scale;
    for (size_t f = 0; f < sample.pools.size(); ++f) {
      const HostPool& pool = sample.pools[f];
      launch.pools[f] = {pools_[f]->data(), pool.page_bytes, pool.record_bytes, pool.page_tokens};
    }
    for (const auto& table : tables) buffers_.push_back(std::make_unique<DeviceBuffer>(table));
    cudaStream_t stream;
    cudaGraph_t graph;
    Check(cudaStreamCreate(&stream), "stream");
    Must(kernels::cuda::ClearWorkspace(plan_, launch.workspace, {stream}));
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < launches_; ++i) {
      launch.page_table = buffers_[5 + static_cast<size_t>(i) % tables.size()]->data<uint32_t>();
      Must(kernels::cuda::DecodeAttention(kernel_, plan_, launch, {stream}));
    }
    Check(cudaStreamEndCapture(stream, &graph), "capture");
    Check(cudaGraphInstantiate(&graph_, graph, 0), "graph");
    Check(cudaGraphDestroy(graph), "graph");
    Check(cudaStreamDestroy(stream), "stream");
  }

  std::string name_;
  double error_ = 0;
  kernels::cuda::DecodeKernel kernel_;
  std::vector<DecodeSegment> segments_;
  std::vector<uint32_t> borders_;
  std::vector<size_t> owners_;
  std::array<uint32_t, kernels::cuda::kNumDecodeFormats> pages_{};
  uint32_t table_size_ = 0;
  uint32_t rotations_ = 0;
  int launches_ = 0;
  size_t bytes_ = 0;
  DecodePlan plan_;
  std::vector<std::unique_ptr<DeviceBuffer>> pools_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  size_t biggest_ = 0;
  cudaGraphExec_t graph_ = nullptr;
};

/// A read of as many bytes, rotated over the arm's own pool, launched the same way.
cudaGraphExec_t RecordRead(const Arm& arm) {
  constexpr int kWarps = 12;
  constexpr int kStages = 2;
  constexpr int kChunk = 9216;
  auto* kernel = BulkReadKernel<kWarps, kStages>;
  int sms = 0;
  Check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWarps * kStages * kChunk), "read");
  const size_t bytes = std::min(arm.bytes(), arm.pool_size()) / kChunk * kChunk;
  const size_t places = std::max<size_t>(1, arm.pool_size() / bytes);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamCreate(&stream), "stream");
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < arm.launches(); ++i) {
    kernel<<<sms, kWarps * 32, kWarps * kStages * kChunk, stream>>>(arm.biggest_pool() + static_cast<size_t>(i) % places * bytes,
                                                                   static_cast<int>(bytes / kChunk), kChunk);
  }
  Check(cudaStreamEndCapture(stream, &graph), "capture");
  Check(cudaGraphInstantiate(&executable, graph, 0), "graph");
  Check(cudaGraphDestroy(graph), "graph");
  Check(cudaStreamDestroy(stream), "stream");
  return executable;
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double TimeGraph(cudaGraphExec_t graph, int launches) {
  static cudaEvent_t begin = nullptr;
  static cudaEvent_t end = nullptr;
  if (begin == nullptr) {
    Check(cudaEventCreate(&begin), "event");
    Check(cudaEventCreate(&end), "event");
  }
  Check(cudaEventRecord(begin), "event");
  Check(cudaGraphLaunch(graph, nullptr), "graph");
  Check(cudaEventRecord(end), "event");
  Check(cudaEventSynchronize(end), "decode attention");
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end), "event");
  return double{ms} * 1e3 / launches;
}

void RunShape(const Options& options, uint32_t batch, uint32_t tokens) {
  const std::vector<uint32_t> lengths = Lengths(batch, tokens, options.ragged);
  std::vector<std::unique_ptr<Arm>> arms;
  std::vector<cudaGraphExec_t> reads;
  for (const ArmSpec& spec : AllArms()) {
    if (!options.arms.empty() && std::find(options.arms.begin(), options.arms.end(), spec.name) == options.arms.end()) {
      continue;
    }
    arms.push_back(std::make_unique<Arm>(spec, lengths, options));
    reads.push_back(RecordRead(*arms.back()));
  }
  std::vector<std::vector<double>> times(arms.size());
  std::vector<std::vector<double>> read_times(arms.size());
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    for (size_t k = 0; k < arms.size(); ++k) {
      const size_t i = repeat % 2 == 0 ? k : arms.size() - 1 - k;  // A B … B A
      cudaGraphExec_t graph = arms[i]->graph();
      const double us = TimeGraph(graph, arms[i]->launches());
      const double read = TimeGraph(reads[i], arms[i]->launches());
      if (repeat > 0) {
        times[i].push_back(us);
        read_times[i].push_back(read);
      }
    }
  }
  std::printf("\n%u x %u%s%s\n%-16s %10s %7s %9s %8s %9s %8s %8s\n", batch, tokens, options.ragged ? " ragged 1:64" : "",
              options.shuffled ? " shuffled" : "", "arm", "us", "spread", "MB", "GB/s", "read GB/s", "share", "x first");
  for (size_t i = 0; i < arms.size(); ++i) {
    const double us = Median(times[i]);
    const double read = Median(read_times[i]);
    const auto [low, high] = std::minmax_element(times[i].begin(), times[i].end());
    const double mb = static_cast<double>(arms[i]->bytes()) / 1e6;
    std::printf("%-16s %10.2f %6.1f%% %9.2f %8.1f %9.1f %8.3f %8.2f   error %.1e\n", arms[i]->name().c_str(), us,
                (*high - *low) / us * 100, mb, mb / us * 1e3, mb / read * 1e3, read / us, Median(times[0]) / us,
                arms[i]->error());
    cudaGraphExecDestroy(reads[i]);
  }
  std::fflush(stdout);
}

std::vector<std::string> Split(const char* text) {
  std::vector<std::string> words;
  std::string word;
  for (const char* c = text;; ++c) {
    if (*c == ',' || *c == 0) {
      words.push_back(word);
      word.clear();
      if (*c == 0) return words;
    } else {
      word += *c;
    }
  }
}

Options Parse(int argc, char** argv) {
  Options options;
  options.shapes = {{1, 8192}, {1, 32768}, {1, 131072}, {8, 32768}, {32, 32768}, {128, 8192}};
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (std::strcmp(argv[i], "--shapes") == 0) {
      options.shapes.clear();
      for (const std::string& word : Split(value())) {
        unsigned batch = 0;
        unsigned tokens = 0;
        if (std::sscanf(word.c_str(), "%ux%u", &batch, &tokens) == 2) options.shapes.push_back({batch, tokens});
      }
    } else if (std::strcmp(argv[i], "--arms") == 0) {
      options.arms = Split(value());
    } else if (std::strcmp(argv[i], "--repeats") == 0) {
      options.repeats = std::atoi(value());
    } else if (std::strcmp(argv[i], "--overhead") == 0) {
      options.overhead = std::atoi(value());
    } else if (std::strcmp(argv[i], "--fine-below") == 0) {
      options.fine_below = std::atoi(value());
    } else if (std::strcmp(argv[i], "--least-bytes") == 0) {
      options.least_bytes = std::atoi(value());
    } else if (std::strcmp(argv[i], "--shuffled") == 0) {
      options.shuffled = true;
    } else if (std::strcmp(argv[i], "--ragged") == 0) {
      options.ragged = true;
    } else {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace
}  // namespace kvant::cuda_bench

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  const auto options = kvant::cuda_bench::Parse(argc, argv);
  std::printf("8 KV heads, 64 query heads, head dimension 128; medians of %d interleaved repeats\n", options.repeats);
  for (const auto& [batch, tokens] : options.shapes) kvant::cuda_bench::RunShape(options, batch, tokens);
  return 0;
}
