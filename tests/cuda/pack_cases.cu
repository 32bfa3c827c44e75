#include <memory>
#include <random>
#include <string>

#include "attention_case.h"
#include "device_memory.h"
#include "kvant/codec/equalization.h"
#include "kvant/kernels/cuda/pack.h"
#include "pack_cases.h"

namespace kvant::cuda_test {
namespace {

using codec::TokenCodec;
using kernels::cuda::PairDeviceLayout;
using kernels::cuda::Stream;

CaseCount g_count;
CaseFilter* g_filter = nullptr;

bool Wanted(const std::string& name, const std::string& kind) { return g_filter->Wants(name) && g_filter->IsNew(kind); }
bool Wanted(const std::string& name) { return Wanted(name, name); }

void Report(const std::string& name, bool ok) {
  ++g_count.cases;
  if (!ok) ++g_count.failures;
  std::printf("%s %s\n", ok ? "ok  " : "FAIL", name.c_str());
}

std::vector<Half> RandomHalves(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Half> halves(count);
  for (size_t i = 0; i < count; ++i) {
    // Some rows constant, some tiny, some large: the corners of the quantizers.
    const float spread = i / 64 % 11 == 3 ? 0.0F : i / 64 % 11 == 5 ? 1e-6F : i / 64 % 11 == 7 ? 900.0F : 1.0F;
    halves[i] = ToHalf(spread * normal(random) + (i % 64 == 9 ? 4.0F : 0.1F));
  }
  return halves;
}

void RowsOf(TokenCodec codec, uint32_t d, size_t rows) {
  const std::string kind = std::string(codec::TokenCodecName(codec)) + " rows d=" + std::to_string(d);
  const std::string name = kind + " n=" + std::to_string(rows);
  if (!Wanted(name, kind)) return;
  const std::vector<Half> src = RandomHalves(rows * d, d + static_cast<uint32_t>(rows));
  std::vector<uint8_t> codes(rows * codec::RowCodeBytes(codec, d));
  std::vector<Half> scales(rows);
  std::vector<Half> zeros(codec::HasZero(codec) ? rows : 0);
  codec::EncodeRowsRef(codec, d, src.data(), d, rows, {codes, scales, zeros});
  std::vector<Half> decoded(src.size());
  codec::DecodeRowsRef(codec, d, {codes, scales, zeros}, rows, decoded.data(), d);

  const DeviceBuffer device_src(src);
  const DeviceBuffer device_codes(codes.size());
  const DeviceBuffer device_scales(rows * 2);
  const DeviceBuffer device_zeros(rows * 2);
  const DeviceBuffer device_decoded(src.size() * 2);
  const kernels::cuda::DeviceRows out{device_codes.data<uint8_t>(), device_scales.data<uint16_t>(),
                                      device_zeros.data<uint16_t>()};
  bool ok =
      RunCaptured([&](Stream s) { return kernels::cuda::EncodeRows(codec, d, device_src.data(), rows, out, s); }) &&
      RunCaptured([&](Stream s) { return kernels::cuda::DecodeRows(codec, d, out, rows, device_decoded.data(), s); });
  Check(cudaDeviceSynchronize(), name.c_str());
  ok = ok && device_codes.Download<uint8_t>() == codes && device_scales.Download<Half>() == scales &&
       (zeros.empty() || device_zeros.Download<Half>() == zeros) && device_decoded.Download<Half>() == decoded &&
       device_codes.CanariesIntact() && device_scales.CanariesIntact() && device_zeros.CanariesIntact() &&
       device_decoded.CanariesIntact();
  Report(name, ok);
}

void PagesOf(const std::string& kind, const codec::WidthMap& map, uint32_t value_bits, codec::PairRule rule,
             uint32_t value_groups = 1) {
  const uint32_t d = map.head_dim();
  const std::string name = "pack " + kind + " v=" + std::to_string(value_bits) + " d=" + std::to_string(d) +
                           " groups=" + std::to_string(value_groups) +
                           (rule == codec::PairRule::kMidRise ? " mid-rise" : " min-max");
  if (!Wanted(name, name.substr(0, name.find(" groups")) + (value_groups == 1 ? "" : " groups"))) return;
  constexpr uint32_t kHeads = 3;
  constexpr uint32_t kPages = 2;
  const codec::PairFormat format{d, 128, value_bits, d / value_groups, rule, rule};
  const PairDeviceLayout layout = PairDeviceLayout::Make(format, map).value();
  const size_t row = size_t{kHeads} * d;
  const std::vector<Half> keys = RandomHalves((5 + 128 * kPages) * row, d + value_bits);
  const std::vector<Half> values = RandomHalves(keys.size(), d + value_bits + 1);
  const std::vector<kernels::cuda::PairPackJob> jobs = {{5, 1, 0}, {5 + 128, 0, 0}};
  const DeviceBuffer device_keys(keys);
  const DeviceBuffer device_values(values);
  const DeviceBuffer device_jobs(jobs);
  const DeviceBuffer device_maps(std::vector<kernels::cuda::PairDeviceMap>(kHeads, layout.DeviceMap()));
  const DeviceBuffer pool(kPages * kHeads * layout.record_bytes());
  kernels::cuda::PairPack pack{format,
                               kHeads,
                               kPages,
                               device_jobs.data<kernels::cuda::PairPackJob>(),
                               device_keys.data(),
                               device_values.data(),
                               device_maps.data<kernels::cuda::PairDeviceMap>(),
                               pool.data(),
                               kHeads * layout.record_bytes(),
                               layout.record_bytes()};
  bool ok = RunCaptured([&](Stream s) { return kernels::cuda::PackPairPages(pack, s); });
  Check(cudaDeviceSynchronize(), name.c_str());
  const std::vector<std::byte> got = pool.Download<std::byte>();
  for (const kernels::cuda::PairPackJob& job : jobs) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      const size_t first = job.first_row * row + size_t{head} * d;
      std::vector<std::byte> record(layout.record_bytes());
      StorePairRecordRef(layout, codec::EncodePairPageRef(format, map, keys.data() + first, values.data() + first, row),
                         record);
      const size_t at = (job.page * kHeads + head) * layout.record_bytes();
      ok = ok && std::memcmp(record.data(), got.data() + at, record.size()) == 0;
    }
  }
  Report(name, ok && pool.CanariesIntact());
}

// Residuals of two sequences in tiles of a shuffled pool, two layers with maps of their own, in one launch.
void FlushOf(uint32_t d, uint32_t value_bits) {
  const std::string name = "flush residual d=" + std::to_string(d) + " v=" + std::to_string(value_bits);
  if (!Wanted(name)) return;
  constexpr uint32_t kHeads = 2;
  constexpr uint32_t kLayers = 2;
  constexpr uint32_t kSinks = 32;
  constexpr uint32_t kTokens = kSinks + 128;  // three pages of 64 tokens a sequence
  constexpr uint32_t kTilesAPage = 4;
  const codec::PairFormat format{d, 128, value_bits, d, codec::PairRule::kMidRise, codec::PairRule::kMinMax};
  const std::vector<uint32_t> page_table = {4, 0, 5, 2, 1, 3};
  const std::vector<kernels::cuda::ResidualFlushJob> jobs = {{0, kSinks / 16, 1, 0}, {3, kSinks / 16, 0, 0}};
  const size_t row = size_t{kHeads} * d;
  const size_t tile = kernels::cuda::TokenTileBytes(TokenCodec::kFp16, d);
  struct Layer {
    codec::WidthMap map;
    PairDeviceLayout layout;
    std::vector<std::vector<Half>> keys, values;  // [sequence][token][head][channel]
    std::unique_ptr<DeviceBuffer> tiles, pages, maps;
  };
  std::vector<Layer> layers(kLayers);
  std::vector<kernels::cuda::ResidualFlushLayer> device_layers;
  for (uint32_t l = 0; l < kLayers; ++l) {
    Layer& layer = layers[l];
    layer.map = l == 0 ? HalfThreeOne(d, 60) : MixedMap(d, 2.0, 61);
    layer.layout = PairDeviceLayout::Make(format, layer.map).value();
    std::vector<std::byte> pool(page_table.size() * kHeads * kTilesAPage * tile);
    for (uint32_t s = 0; s < 2; ++s) {
      layer.keys.push_back(RandomHalves(kTokens * row, d + 10 * l + s));
      layer.values.push_back(RandomHalves(kTokens * row, d + 10 * l + s + 5));
      for (uint32_t t = 0; t < kTokens; ++t) {
        for (uint32_t head = 0; head < kHeads; ++head) {
          const size_t record = (page_table[s * 3 + t / 64] * kHeads + head) * kTilesAPage * tile;
          const size_t at = t * row + head * d;
          const auto bytes = [&](const std::vector<Half>& x) {
            return std::span(reinterpret_cast<const uint8_t*>(x.data() + at), size_t{2} * d);
          };
          kernels::cuda::StoreTokenTilesRef(TokenCodec::kFp16, d, std::span(pool).subspan(record, kTilesAPage * tile),
                                            t % 64, 1, {bytes(layer.keys[s]), {}, {}},
                                            {bytes(layer.values[s]), {}, {}});
        }
      }
    }
    layer.tiles = std::make_unique<DeviceBuffer>(pool);
    layer.pages = std::make_unique<DeviceBuffer>(2 * kHeads * layer.layout.record_bytes());
    layer.maps =
        std::make_unique<DeviceBuffer>(std::vector<kernels::cuda::PairDeviceMap>(kHeads, layer.layout.DeviceMap()));
    device_layers.push_back({layer.tiles->data(), layer.pages->data(), layer.maps->data<kernels::cuda::PairDeviceMap>(),
                             kHeads * layer.layout.record_bytes(), layer.layout.record_bytes()});
  }
  const DeviceBuffer device_jobs(jobs);
  const DeviceBuffer device_table(page_table);
  const DeviceBuffer all_layers(device_layers);
  const kernels::cuda::ResidualFlush flush{format,
                                           kHeads,
                                           2,
                                           kLayers,
                                           device_jobs.data<kernels::cuda::ResidualFlushJob>(),
                                           all_layers.data<kernels::cuda::ResidualFlushLayer>(),
                                           device_table.data<uint32_t>(),
                                           64,
                                           kHeads * kTilesAPage * tile,
                                           kTilesAPage * tile};
  bool ok = RunCaptured([&](Stream s) { return kernels::cuda::FlushResidual(flush, s); });
  Check(cudaDeviceSynchronize(), name.c_str());
  for (const Layer& layer : layers) {
    const std::vector<std::byte> got = layer.pages->Download<std::byte>();
    for (uint32_t s = 0; s < 2; ++s) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        std::vector<std::byte> expected(layer.layout.record_bytes());
        const size_t first = kSinks * row + size_t{head} * d;
        StorePairRecordRef(layer.layout,
                           codec::EncodePairPageRef(format, layer.map, layer.keys[s].data() + first,
                                                    layer.values[s].data() + first, row),
                           expected);
        ok = ok && std::memcmp(expected.data(), got.data() + (jobs[s].page * kHeads + head) * expected.size(),
                               expected.size()) == 0;
      }
    }
    ok = ok && layer.pages->CanariesIntact() && layer.tiles->CanariesIntact();
  }
  Report(name, ok);
}

// A tile filled in two steps: the second one may not touch the first one's tokens.
void TilesOf(TokenCodec codec, uint32_t d, bool equalized) {
  const std::string name =
      std::string(codec::TokenCodecName(codec)) + " tiles d=" + std::to_string(d) + (equalized ? " equalized" : "");
  if (!Wanted(name)) return;
  constexpr uint32_t kHeads = 2;
  constexpr uint32_t kTokens = 16 + 11;
  const size_t row = size_t{kHeads} * d;
  const std::vector<Half> keys = RandomHalves(kTokens * row, d + 1);
  const std::vector<Half> values = RandomHalves(keys.size(), d + 2);
  std::vector<Half> map;
  for (size_t i = 0; i < 2 * row; ++i) map.push_back(ToHalf(i / d % 2 == 0 ? 0.25F * static_cast<float>(i % 5) : 1.5F));
  const size_t record = 2 * kernels::cuda::TokenTileBytes(codec, d);
  const uint32_t map_index = equalized ? 0 : 0xFFFFFFFFU;
  const std::vector<kernels::cuda::TileStoreJob> first = {{0, 0, 0, 0, 16, map_index}, {16, 0, 1, 0, 5, map_index}};
  const std::vector<kernels::cuda::TileStoreJob> second = {{21, 0, 1, 5, 6, map_index}};
  const DeviceBuffer device_keys(keys);
  const DeviceBuffer device_values(values);
  const DeviceBuffer device_first(first);
  const DeviceBuffer device_second(second);
  const DeviceBuffer device_map(map);
  DeviceBuffer pool(kHeads * record);
  pool.Fill(0xFF);  // what an earlier owner left
  kernels::cuda::TileStore store{codec,
                                 d,
                                 kHeads,
                                 2,
                                 device_first.data<kernels::cuda::TileStoreJob>(),
                                 device_keys.data(),
                                 device_values.data(),
                                 device_map.data(),
                                 pool.data(),
                                 kHeads * record,
                                 record};
  bool ok = RunCaptured([&](Stream s) { return kernels::cuda::StoreTiles(store, s); });
  store.jobs = device_second.data<kernels::cuda::TileStoreJob>();
  store.num_jobs = 1;
  ok = ok && RunCaptured([&](Stream s) { return kernels::cuda::StoreTiles(store, s); });
  Check(cudaDeviceSynchronize(), name.c_str());
  const std::vector<std::byte> got = pool.Download<std::byte>();
  for (uint32_t head = 0; head < kHeads; ++head) {
    std::vector<std::byte> expected(record);
    for (uint32_t t = 0; t < kTokens; ++t) {
      std::vector<Half> key(keys.begin() + t * row + head * d, keys.begin() + t * row + (head + 1) * d);
      const std::span<const Half> of_head = std::span<const Half>(map).subspan(size_t{head} * 2 * d, 2 * size_t{d});
      if (equalized) codec::EqualizeRow(key, of_head.first(d), of_head.subspan(d), key);
      std::vector<uint8_t> key_codes(codec::RowCodeBytes(codec, d));
      std::vector<uint8_t> value_codes(key_codes.size());
      std::vector<Half> scales(codec::HasScale(codec) ? 2 : 0);
      std::vector<Half> zeros(codec::HasZero(codec) ? 2 : 0);
      const std::span<Half> s(scales);
      const std::span<Half> z(zeros);
      const size_t has_scale = scales.size() / 2;
      const size_t has_zero = zeros.size() / 2;
      codec::EncodeRowsRef(codec, d, key.data(), d, 1, {key_codes, s.first(has_scale), z.first(has_zero)});
      codec::EncodeRowsRef(codec, d, values.data() + t * row + head * d, d, 1,
                           {value_codes, s.subspan(has_scale), z.subspan(has_zero)});
      kernels::cuda::StoreTokenTilesRef(codec, d, expected, t, 1, {key_codes, s.first(has_scale), z.first(has_zero)},
                                        {value_codes, s.subspan(has_scale), z.subspan(has_zero)});
    }
    ok = ok && std::memcmp(expected.data(), got.data() + head * record, record) == 0;
  }
  Report(name, ok && pool.CanariesIntact());
}

}  // namespace

CaseCount RunPackCases(CaseFilter& filter) {
  g_filter = &filter;
  for (const TokenCodec codec : {TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine}) {
    for (const uint32_t d : {64U, 128U, 256U}) {
      for (const size_t rows : {size_t{31}, size_t{1}, size_t{5001}}) RowsOf(codec, d, rows);
    }
  }
  for (const TokenCodec codec : {TokenCodec::kFp16, TokenCodec::kInt8, TokenCodec::kInt4, TokenCodec::kInt4Affine}) {
    for (const uint32_t d : {64U, 128U, 256U}) {
      TilesOf(codec, d, false);
      if (codec != TokenCodec::kFp16) TilesOf(codec, d, true);
    }
  }
  for (const uint32_t d : {64U, 128U, 256U}) {
    for (const uint32_t value_bits : {2U, 3U, 4U}) FlushOf(d, value_bits);
  }
  for (const codec::PairRule rule : {codec::PairRule::kMinMax, codec::PairRule::kMidRise}) {
    for (const uint32_t d : {64U, 128U, 256U}) {
      for (const uint32_t value_bits : {2U, 3U, 4U}) {
        PagesOf("pnmix 3/1", HalfThreeOne(d, 5), value_bits, rule);
        PagesOf("pairs:2.0", MixedMap(d, 2.0, 6), value_bits, rule);
        PagesOf("uniform 4", UniformMap(d, 4), value_bits, rule);
        for (const uint32_t groups : {2U, d / 16}) PagesOf("pnmix 3/1", HalfThreeOne(d, 7), value_bits, rule, groups);
      }
    }
  }
  return g_count;
}

}  // namespace kvant::cuda_test
