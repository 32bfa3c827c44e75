#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bulk_read.cuh"
#include "decode_arm.h"

namespace kvant::cuda_bench {
namespace {

using cuda_test::DecodeRunner;
using cuda_test::DeviceError;
using cuda_test::Must;
using cuda_test::SegmentSpec;
using kernels::cuda::BatchKind;
using kernels::cuda::DecodeRun;

constexpr size_t kColdBytes = size_t{320} << 20;  // more than five times the L2 of an H200
constexpr double kTolerance = 3e-3;

std::vector<SegmentSpec> SequenceOf(DecodeFormat format, uint32_t tokens) {
  if (format != DecodeFormat::kPair) return {{format, tokens, 0}};
  const uint32_t pages = (tokens - std::min(tokens, 32U)) / 128 * 128;
  if (pages == 0) return {{DecodeFormat::kFp16, tokens, 0}};
  return {{DecodeFormat::kFp16, tokens - pages, 0}, {DecodeFormat::kPair, pages, 0}};
}

// Two short sequences, whose pages are used over and over.
AttentionCase SampleOf(const FormatSpec& format, const kernels::cuda::DecodeShape& shape) {
  cuda_test::CaseSpec spec{format.name, shape, {}};
  for (const uint32_t tokens : {700U, 1500U}) spec.sequences.push_back(SequenceOf(format.format, tokens));
  if (format.format == DecodeFormat::kPair) spec.maps = {format.map};
  spec.value_bits = format.value_bits;
  spec.value_groups = format.value_groups;
  AttentionCase sample = MakeCase(spec);
  sample.half_three_one = sample.half_three_one && format.fixed_steps;
  return sample;
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

std::vector<uint32_t> Lengths(uint32_t batch, uint32_t tokens, BatchKind kind) {
  std::vector<uint32_t> lengths(batch, tokens);
  if (kind != BatchKind::kRagged || batch == 1) return lengths;
  const auto weight = [&](uint32_t i) { return 1.0 + 63.0 * i / (batch - 1); };
  double sum = 0;
  for (uint32_t i = 0; i < batch; ++i) sum += weight(i);
  for (uint32_t i = 0; i < batch; ++i) lengths[i] = static_cast<uint32_t>(weight(i) / sum * batch * tokens);
  return lengths;
}

codec::WidthMap FourOne(uint32_t head_dim) {
  codec::WidthMap map = cuda_test::HalfThreeOne(head_dim, 3);
  const auto most = static_cast<uint32_t>(0.35 * head_dim / 2);
  uint32_t wide = 0;
  for (uint8_t& width : map.widths) width = width == 3 && wide++ < most ? 4 : 1;
  return map;
}

}  // namespace

std::vector<FormatSpec> AllFormats(uint32_t head_dim) {
  const codec::WidthMap half = cuda_test::HalfThreeOne(head_dim, 1);
  const codec::WidthMap mixed = cuda_test::MixedMap(head_dim, 2.0, 8);
  constexpr DecodeFormat kPair = DecodeFormat::kPair;
  // About 610 instructions of half rate a page of 128 tokens (ADR 0102).
  const double alu = head_dim == 128 ? 305 : 0;
  return {{"fp16", DecodeFormat::kFp16},
          {"bf16", DecodeFormat::kBf16},
          {"int8", DecodeFormat::kInt8},
          {"int4", DecodeFormat::kInt4},
          {"int4-affine", DecodeFormat::kInt4Affine},
          {"pnmix", kPair, half, 2, 1, true, alu},
          {"pnmix general", kPair, half, 2, 1, false},
          {"uniform2", kPair, cuda_test::UniformMap(head_dim, 2), 2},
          {"pnmix-4/1@35%", kPair, FourOne(head_dim), 2},
          {"pairs:2.0", kPair, mixed, 2},
          {"pnmix v=3", kPair, half, 3},
          {"pnmix v=4", kPair, half, 4},
          {"pairs:2.0 v=4", kPair, mixed, 4},
          {"pnmix v=2 2 groups", kPair, half, 2, 2},
          {"pnmix v=4 2 groups", kPair, half, 4, 2}};
}

DecodeArm::DecodeArm(const FormatSpec& format, BatchKind kind, const kernels::cuda::AttentionMeasurement& wanted)
    : name_(format.name), shape_(wanted.shape) {
  const AttentionCase sample = SampleOf(format, shape_);
  Check(sample);
  kernel_ = Must(kernels::cuda::SelectDecode(RequestOf(sample)));
  kernels::cuda::DecodeCosts& costs = kernel_.costs;
  if (wanted.overhead >= 0) costs.tile_overhead = static_cast<uint32_t>(wanted.overhead);
  if (wanted.start >= 0) costs.start_bytes.fill(static_cast<uint32_t>(wanted.start));
  if (wanted.fine_below >= 0) costs.fine_below = static_cast<uint32_t>(wanted.fine_below);
  if (wanted.least_bytes >= 0) costs.least_bytes = static_cast<uint32_t>(wanted.least_bytes);
  LayOut(format, Lengths(wanted.batch, wanted.tokens, kind), sample);
  MakePools(sample);
  Record(sample, PageTables(kind == BatchKind::kShuffled));
  RecordRead();
  if (kind == BatchKind::kShuffled) name_ += " shuffled";
  if (kind == BatchKind::kRagged) name_ += " ragged";
}

void DecodeArm::Check(const AttentionCase& sample) {
  error_ = ErrorOf(DecodeRunner(sample).Run(), sample.expected);
  if (!(error_ <= kTolerance)) {
    throw DeviceError({StatusCode::kInternal,
                       name_ + " differs from the reference by " + std::to_string(error_) + " of the largest output"});
  }
}

void DecodeArm::LayOut(const FormatSpec& format, const std::vector<uint32_t>& lengths, const AttentionCase& sample) {
  borders_.push_back(0);
  for (const uint32_t n : lengths) {
    for (const SegmentSpec& spec : SequenceOf(format.format, n)) {
      const bool pair = spec.format == DecodeFormat::kPair;
      const auto f = static_cast<size_t>(spec.format);
      const uint32_t page_tokens = sample.pools[f].page_tokens;
      segments_.push_back(
          {spec.format, spec.num_tokens, 0, static_cast<uint32_t>(owners_.size()), pair ? 0U : DecodeRun::kNone});
      const uint32_t pages = (spec.num_tokens + page_tokens - 1) / page_tokens;
      owners_.insert(owners_.end(), pages, f);
      pages_[f] += pages;
      bytes_ += pair ? sample.pools[f].page_bytes * pages
                     : size_t{(spec.num_tokens + 15) / 16} * shape_.num_kv_heads *
                           kernels::cuda::TokenTileBytes(kernels::cuda::TokenCodecOf(spec.format), shape_.head_dim);
    }
    borders_.push_back(static_cast<uint32_t>(segments_.size()));
  }
  alu_cycles_ = format.alu_cycles_a_page * pages_[static_cast<size_t>(DecodeFormat::kPair)] * shape_.num_kv_heads;
  rotations_ = static_cast<uint32_t>(std::clamp<size_t>(kColdBytes / bytes_ + 1, 2, 128));
  launches_ = static_cast<int>(std::max(rotations_, bytes_ < (size_t{1} << 30) ? 16U : 2U));
  plan_ = Must(kernels::cuda::PlanDecode(shape_, segments_, borders_, kernel_.costs, kernel_.grid));
}

std::vector<std::vector<uint32_t>> DecodeArm::PageTables(bool shuffled) const {
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
void DecodeArm::MakePools(const AttentionCase& sample) {
  for (size_t f = 0; f < sample.pools.size(); ++f) {
    const cuda_test::HostPool& pool = sample.pools[f];
    const size_t wanted = size_t{pages_[f]} * rotations_ * pool.page_bytes;
    pools_.push_back(std::make_unique<DeviceBuffer>(std::max(wanted, size_t{16})));
    if (wanted == 0) continue;
    size_t have = std::min(wanted, pool.bytes.size());
    cuda_test::Check(cudaMemcpy(pools_[f]->data(), pool.bytes.data(), have, cudaMemcpyHostToDevice), "pool");
    while (have < wanted) {
      const size_t more = std::min(have, wanted - have);
      cuda_test::Check(cudaMemcpy(pools_[f]->data() + have, pools_[f]->data(), more, cudaMemcpyDeviceToDevice), "pool");
      have += more;
    }
    if (wanted > pools_[biggest_]->size()) biggest_ = f;
  }
}

std::byte* DecodeArm::Upload(std::unique_ptr<DeviceBuffer> buffer) {
  buffers_.push_back(std::move(buffer));
  return buffers_.back()->data();
}

void DecodeArm::Record(const AttentionCase& sample, const std::vector<std::vector<uint32_t>>& tables) {
  std::vector<std::byte> host_plan(plan_.DeviceBytes());
  plan_.CopyTo(host_plan);
  std::vector<float> q((borders_.size() - 1) * shape_.num_q_heads() * shape_.head_dim);
  for (size_t i = 0; i < q.size(); ++i) q[i] = sample.q[i % sample.q.size()];
  kernels::cuda::DecodeLaunch launch;
  launch.plan = Upload(std::make_unique<DeviceBuffer>(host_plan));
  launch.workspace = Upload(std::make_unique<DeviceBuffer>(kernels::cuda::WorkspaceOf(plan_).total_bytes()));
  launch.q = reinterpret_cast<const float*>(Upload(std::make_unique<DeviceBuffer>(q)));
  launch.out = reinterpret_cast<float*>(Upload(std::make_unique<DeviceBuffer>(q.size() * sizeof(float))));
  launch.maps =
      reinterpret_cast<const kernels::cuda::PairDeviceMap*>(Upload(std::make_unique<DeviceBuffer>(sample.maps)));
  launch.softmax_scale = sample.softmax_scale;
  for (size_t f = 0; f < sample.pools.size(); ++f) {
    const cuda_test::HostPool& pool = sample.pools[f];
    launch.pools[f] = {pools_[f]->data(), pool.page_bytes, pool.record_bytes, pool.page_tokens};
  }
  std::vector<const uint32_t*> places;
  for (const auto& table : tables) {
    places.push_back(reinterpret_cast<const uint32_t*>(Upload(std::make_unique<DeviceBuffer>(table))));
  }
  Must(kernels::cuda::ClearWorkspace(plan_, launch.workspace, {}));
  cuda_test::Check(cudaDeviceSynchronize(), "workspace");
  graph_ = std::make_unique<TimedGraph>(launches_, [&](cudaStream_t stream, int i) {
    launch.page_table = places[static_cast<size_t>(i) % places.size()];
    Must(kernels::cuda::DecodeAttention(kernel_, plan_, launch, {stream}));
  });
}

void DecodeArm::RecordRead() {
  constexpr int kWarps = 12;
  constexpr int kStages = 2;
  constexpr int kChunk = 9216;
  constexpr int kShared = kWarps * kStages * kChunk;
  auto* kernel = BulkReadKernel<kWarps, kStages>;
  int sms = 0;
  cuda_test::Check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
  cuda_test::Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "read");
  const std::byte* pool = pools_[biggest_]->data();
  const size_t pool_bytes = pools_[biggest_]->size();
  const size_t bytes = std::min(bytes_, pool_bytes) / kChunk * kChunk;
  const size_t places = std::max<size_t>(1, pool_bytes / bytes);
  read_ = std::make_unique<TimedGraph>(launches_, [&](cudaStream_t stream, int i) {
    kernel<<<sms, kWarps * 32, kShared, stream>>>(pool + static_cast<size_t>(i) % places * bytes,
                                                  static_cast<int>(bytes / kChunk), kChunk);
  });
}

}  // namespace kvant::cuda_bench
