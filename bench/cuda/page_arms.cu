#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kvant/codec/equalization.h"
#include "kvant/kernels/cuda/importance.h"
#include "kvant/kernels/cuda/pack.h"
#include "page_arms.h"

namespace kvant::cuda_bench {
namespace {

using codec::TokenCodec;
using cuda_test::Check;

std::vector<Half> RandomHalves(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> halves(count);
  for (Half& h : halves) h = ToHalf(normal(random));
  return halves;
}

template <typename T>
std::vector<T> Download(const void* src, size_t count) {
  std::vector<T> host(count);
  Check(cudaMemcpy(host.data(), src, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return host;
}

}  // namespace

PageMemory::PageMemory(const kernels::cuda::CodecMeasurement& wanted)
    : d_(wanted.head_dim),
      heads_(wanted.num_kv_heads),
      pages_(wanted.pages),
      host_keys_(RandomHalves(std::min(kPattern, size_t{pages_} * 128 * row()), 1)),
      host_values_(RandomHalves(host_keys_.size(), 2)),
      keys_(Repeat(host_keys_)),
      values_(Repeat(host_values_)),
      copy_(std::make_unique<DeviceBuffer>(2 * side_bytes())) {}

std::unique_ptr<DeviceBuffer> PageMemory::Repeat(const std::vector<Half>& pattern) const {
  auto buffer = std::make_unique<DeviceBuffer>(side_bytes());
  for (size_t at = 0; at < side_bytes(); at += pattern.size() * 2) {
    const size_t bytes = std::min(pattern.size() * 2, side_bytes() - at);
    Check(cudaMemcpy(buffer->data() + at, pattern.data(), bytes, cudaMemcpyHostToDevice), "rows");
  }
  return buffer;
}

std::byte* PageMemory::Keep(size_t bytes) {
  kept_.push_back(std::make_unique<DeviceBuffer>(bytes));
  return kept_.back()->data();
}

PageArm PageMemory::Copy() {
  const auto run = [this]() -> Status {
    Check(cudaMemcpyAsync(copy_->data(), keys_->data(), side_bytes(), cudaMemcpyDeviceToDevice), "copy");
    Check(cudaMemcpyAsync(copy_->data() + side_bytes(), values_->data(), side_bytes(), cudaMemcpyDeviceToDevice),
          "copy");
    return OkStatus();
  };
  const auto equal = [this] { return Download<Half>(copy_->data(), host_keys_.size()) == host_keys_; };
  return {"memcpy", 2 * side_bytes(), 4 * side_bytes(), run, equal};
}

PageArm PageMemory::Pack(const std::string& name, const codec::WidthMap& map, uint32_t value_bits,
                         codec::PairRule rule) {
  const codec::PairFormat format{d_, 128, value_bits, d_, rule, rule};
  const auto layout = cuda_test::Must(kernels::cuda::PairDeviceLayout::Make(format, map));
  std::vector<kernels::cuda::PairPackJob> jobs;
  for (uint32_t page = 0; page < pages_; ++page) jobs.push_back({uint64_t{page} * 128, page, 0});
  kernels::cuda::PairPack pack;
  pack.format = format;
  pack.num_kv_heads = heads_;
  pack.num_jobs = pages_;
  pack.jobs = Upload(jobs);
  pack.keys = keys_->data();
  pack.values = values_->data();
  pack.maps = Upload(std::vector<kernels::cuda::PairDeviceMap>(heads_, layout.DeviceMap()));
  pack.record_bytes = layout.record_bytes();
  pack.page_bytes = pack.record_bytes * heads_;
  pack.pool = Keep(pack.page_bytes * pages_);
  const auto equal = [=, this] {
    for (const uint32_t head : {0U, heads_ - 1}) {  // of the second page
      const size_t first = 128 * row() + size_t{head} * d_;
      std::vector<std::byte> expected(pack.record_bytes);
      StorePairRecordRef(layout,
                         EncodePairPageRef(format, map, host_keys_.data() + first, host_values_.data() + first, row()),
                         expected);
      const auto* record = static_cast<const std::byte*>(pack.pool) + pack.page_bytes + head * pack.record_bytes;
      if (Download<std::byte>(record, pack.record_bytes) != expected) return false;
    }
    return true;
  };
  return {name, 2 * side_bytes(), 2 * side_bytes() + pack.page_bytes * pages_,
          [pack] { return kernels::cuda::PackPairPages(pack, {}); }, equal};
}

PageArm PageMemory::Store(TokenCodec codec, bool equalized) {
  std::vector<kernels::cuda::TileStoreJob> jobs;
  for (uint32_t page = 0; page < pages_; ++page) {
    for (uint32_t tile = 0; tile < 8; ++tile) {
      jobs.push_back({uint64_t{page} * 128 + 16 * tile, page, tile, 0, 16, equalized ? 0U : 0xFFFFFFFFU});
    }
  }
  std::vector<Half> map(2 * row());
  for (size_t i = 0; i < map.size(); ++i) map[i] = ToHalf(i / d_ % 2 == 0 ? 0.25F : 1.5F);
  kernels::cuda::TileStore store;
  store.codec = codec;
  store.head_dim = d_;
  store.num_kv_heads = heads_;
  store.num_jobs = static_cast<uint32_t>(jobs.size());
  store.jobs = Upload(jobs);
  store.keys = keys_->data();
  store.values = values_->data();
  store.equalization = Upload(map);
  store.record_bytes = 8 * kernels::cuda::TokenTileBytes(codec, d_);
  store.page_bytes = store.record_bytes * heads_;
  store.pool = Keep(store.page_bytes * pages_);
  const auto equal = [=, this] {  // the first tile of the first head
    const size_t bytes = codec::RowCodeBytes(codec, d_);
    std::vector<std::byte> expected(kernels::cuda::TokenTileBytes(codec, d_));
    for (uint32_t t = 0; t < 16; ++t) {
      std::vector<Half> key(host_keys_.begin() + t * row(), host_keys_.begin() + t * row() + d_);
      const std::span<const Half> of_head(map);
      if (equalized && codec != TokenCodec::kFp16)
        codec::EqualizeRow(key, of_head.first(d_), of_head.subspan(d_, d_), key);
      std::vector<uint8_t> codes(2 * bytes);
      std::vector<Half> params(4);
      const std::span<uint8_t> c(codes);
      const std::span<Half> p(params);
      const size_t scale = codec::HasScale(codec) ? 1 : 0;
      const size_t zero = codec::HasZero(codec) ? 1 : 0;
      codec::EncodeRowsRef(codec, d_, key.data(), d_, 1, {c.first(bytes), p.first(scale), p.subspan(1, zero)});
      codec::EncodeRowsRef(codec, d_, host_values_.data() + t * row(), d_, 1,
                           {c.subspan(bytes), p.subspan(2, scale), p.subspan(3, zero)});
      kernels::cuda::StoreTokenTilesRef(codec, d_, expected, t, 1, {c.first(bytes), p.first(scale), p.subspan(1, zero)},
                                        {c.subspan(bytes), p.subspan(2, scale), p.subspan(3, zero)});
    }
    return Download<std::byte>(store.pool, expected.size()) == expected;
  };
  return {"store " + std::string(codec::TokenCodecName(codec)) + (equalized ? " equalized" : ""), 2 * side_bytes(),
          2 * side_bytes() + store.page_bytes * pages_, [store] { return kernels::cuda::StoreTiles(store, {}); },
          equal};
}

std::vector<PageArm> PageMemory::Rows(TokenCodec codec) {
  const size_t num_rows = size_t{pages_} * 128 * heads_;
  const size_t row_bytes = codec::RowCodeBytes(codec, d_);
  const kernels::cuda::DeviceRows rows{reinterpret_cast<uint8_t*>(Keep(num_rows * row_bytes)),
                                       reinterpret_cast<uint16_t*>(Keep(num_rows * 2)),
                                       reinterpret_cast<uint16_t*>(Keep(num_rows * 2))};
  const std::string name(codec::TokenCodecName(codec));
  const size_t moved = side_bytes() + num_rows * codec::RowBytes(codec, d_);
  const void* src = keys_->data();
  std::byte* dst = copy_->data();
  const size_t checked = host_keys_.size() / d_;
  std::vector<uint8_t> codes(checked * row_bytes);
  std::vector<Half> scales(codec::HasScale(codec) ? checked : 0);
  std::vector<Half> zeros(codec::HasZero(codec) ? checked : 0);
  codec::EncodeRowsRef(codec, d_, host_keys_.data(), d_, checked, {codes, scales, zeros});
  std::vector<Half> decoded(host_keys_.size());
  codec::DecodeRowsRef(codec, d_, {codes, scales, zeros}, checked, decoded.data(), d_);
  const auto encoded_equal = [=] {
    return Download<uint8_t>(rows.codes, codes.size()) == codes &&
           Download<Half>(rows.scales, scales.size()) == scales && Download<Half>(rows.zeros, zeros.size()) == zeros;
  };
  const auto decoded_equal = [=] { return Download<Half>(dst, decoded.size()) == decoded; };
  const uint32_t d = d_;
  return {{"encode " + name, side_bytes(), moved,
           [=] { return kernels::cuda::EncodeRows(codec, d, src, num_rows, rows, {}); }, encoded_equal},
          {"decode " + name, side_bytes(), moved,
           [=] { return kernels::cuda::DecodeRows(codec, d, rows, num_rows, dst, {}); }, decoded_equal}};
}

PageArm PageMemory::Norms() {
  const size_t num_rows = size_t{pages_} * 128;
  const size_t num_sums = size_t{heads_} * d_ / 2;
  kernels::cuda::PairNorms norms{d_, heads_, codec::PairLayout::kHalfSplit, keys_->data(), num_rows, nullptr, nullptr};
  norms.sums = reinterpret_cast<float*>(Keep(num_sums * sizeof(float)));
  norms.workspace = Keep(kernels::cuda::PairNormsWorkspace(d_, heads_, num_rows));
  const auto run = [norms, num_sums]() -> Status {
    Check(cudaMemsetAsync(norms.sums, 0, num_sums * sizeof(float)), "sums");
    return kernels::cuda::AddPairNorms(norms, {});
  };
  const auto equal = [=, this] {
    std::vector<double> expected(num_sums);
    kernels::cuda::AddPairNormsRef(norms.pairs, d_, heads_, host_keys_, expected);
    const double repeats =
        static_cast<double>(num_rows) * static_cast<double>(row()) / static_cast<double>(host_keys_.size());
    const std::vector<float> got = Download<float>(norms.sums, num_sums);
    for (size_t i = 0; i < num_sums; ++i) {
      if (!(std::fabs(double{got[i]} / (expected[i] * repeats) - 1.0) <= 1e-5)) return false;
    }
    return true;
  };
  return {"pair norms", side_bytes(), side_bytes(), run, equal};
}

// The last queries of a prompt, over eight query heads a KV head; rows of the values stand for queries.
PageArm PageMemory::Mass(const std::string& name, uint32_t num_queries, uint32_t num_keys) {
  kernels::cuda::AttentionMass call;
  call.head_dim = d_;
  call.num_kv_heads = heads_;
  call.q_heads_per_kv_head = 8;
  call.q = values_->data();
  call.first_position = num_keys - num_queries;
  call.num_queries = num_queries;
  call.keys = keys_->data();
  call.num_keys = num_keys;
  call.softmax_scale = 1.0F / std::sqrt(static_cast<float>(d_));
  call.mass = reinterpret_cast<float*>(Keep(size_t{heads_} * num_keys * sizeof(float)));
  call.workspace = Keep(AttentionMassWorkspace(call));
  const size_t count = size_t{heads_} * num_keys;
  const auto run = [call, count]() -> Status {
    Check(cudaMemsetAsync(call.mass, 0, count * sizeof(float)), "mass");
    return kernels::cuda::AddAttentionMass(call, {});
  };
  // Every query gives away one: what the tests of the kernel hold against the reference, here in sum.
  const auto adds_up = [call, count] {
    double sum = 0;
    for (const float x : Download<float>(call.mass, count)) sum += double{x};
    const double expected =
        double{static_cast<double>(call.num_queries)} * call.num_kv_heads * call.q_heads_per_kv_head;
    return std::fabs(sum / expected - 1.0) <= 1e-4;
  };
  const uint64_t bytes = (uint64_t{num_queries} * 8 + num_keys) * row() * 2;
  return {name, bytes, bytes, run, adds_up};
}

}  // namespace kvant::cuda_bench
