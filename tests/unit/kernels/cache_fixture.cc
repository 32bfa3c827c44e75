#include "unit/kernels/cache_fixture.h"

#include <algorithm>
#include <cmath>
#include <new>

namespace kvant::kernels {
namespace {

constexpr size_t kRecordOffset = 192;  // this KV head is not the page's first

std::vector<Half> RandomHalves(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<Half> halves(count);
  std::generate(halves.begin(), halves.end(), [&] { return ToHalf(normal(random)); });
  return halves;
}

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<Half> scales;
  std::vector<Half> zeros;

  codec::ConstTokenRows From(uint32_t token, size_t row_bytes) const {
    return {std::span(codes).subspan(token * row_bytes), std::span(scales).subspan(token),
            std::span(zeros).subspan(token)};
  }
};

Encoded Encode(codec::TokenCodec codec, uint32_t head_dim, const std::vector<Half>& rows) {
  const size_t num_tokens = rows.size() / head_dim;
  Encoded encoded{std::vector<uint8_t>(num_tokens * codec::RowCodeBytes(codec, head_dim)),
                  std::vector<Half>(num_tokens), std::vector<Half>(num_tokens)};
  codec::EncodeRowsRef(codec, head_dim, rows.data(), head_dim, num_tokens,
                       {encoded.codes, encoded.scales, encoded.zeros});
  return encoded;
}

}  // namespace

RandomSegment::RandomSegment(const SegmentSpec& spec, uint32_t seed)
    : spec_(spec), layout_(codec::TokenPageLayout::Make(spec.codec, spec.head_dim, spec.page_tokens)) {
  std::mt19937 random(seed);
  std::vector<Half> keys = RandomHalves(size_t{spec.num_tokens} * spec.head_dim, random);
  const std::vector<Half> values = RandomHalves(keys.size(), random);
  for (size_t i = 0; i < keys.size(); i += 4) {
    keys[i] = ToHalf(ToFloat(keys[i]) + spec.key_offset);
  }
  if (spec.equalized) {
    Equalize(keys);
  }
  Store(keys, values);
}

void RandomSegment::Equalize(std::vector<Half>& keys) {
  codec::EqualizationBuilder builder(1, spec_.head_dim);
  for (uint32_t t = 0; t < spec_.num_tokens; ++t) {
    codec::AddKey(std::span(keys).subspan(size_t{t} * spec_.head_dim, spec_.head_dim), builder.stats(0));
  }
  map_ = builder.Finish(spec_.num_tokens);
  for (uint32_t t = 0; t < spec_.num_tokens; ++t) {
    const std::span row = std::span(keys).subspan(size_t{t} * spec_.head_dim, spec_.head_dim);
    codec::EqualizeRow(row, map_.MeanOf(0), map_.ScaleOf(0), row);
  }
}

void RandomSegment::Store(const std::vector<Half>& keys, const std::vector<Half>& values) {
  for (uint32_t t = 0; t < spec_.num_tokens; ++t) {
    positions_.push_back(spec_.first_position + static_cast<int32_t>(t * spec_.position_step));
  }
  const Encoded encoded_keys = Encode(spec_.codec, spec_.head_dim, keys);
  const Encoded encoded_values = Encode(spec_.codec, spec_.head_dim, values);
  const size_t row_bytes = codec::RowCodeBytes(spec_.codec, spec_.head_dim);
  for (uint32_t first = 0; first < spec_.num_tokens; first += spec_.page_tokens) {
    const size_t page_bytes = kRecordOffset + layout_.record_bytes;
    pages_.emplace_back(new (std::align_val_t{64}) std::byte[page_bytes]);
    std::fill_n(pages_.back().get(), page_bytes, std::byte{0});
    codec::StoreRowsRef(layout_, pages_.back().get() + kRecordOffset, 0,
                        std::min(spec_.page_tokens, spec_.num_tokens - first), encoded_keys.From(first, row_bytes),
                        encoded_values.From(first, row_bytes));
    page_pointers_.push_back(pages_.back().get());
  }
}

AttendSegment RandomSegment::view() const {
  AttendSegment segment;
  segment.layout = &layout_;
  segment.pages = page_pointers_;
  segment.record_offset = kRecordOffset;
  segment.num_tokens = spec_.num_tokens;
  segment.first_position = spec_.first_position;
  segment.positions = spec_.position_step > 1 ? positions_.data() : nullptr;
  if (spec_.equalized) {
    segment.key_mean = map_.mean.data();
    segment.key_scale = map_.scale.data();
  }
  return segment;
}

RandomQueries::RandomQueries(uint32_t head_dim, uint32_t q_heads_per_kv_head, std::vector<int32_t> positions,
                             uint32_t seed)
    : head_dim_(head_dim),
      q_heads_per_kv_head_(q_heads_per_kv_head),
      query_stride_(size_t{head_dim} * q_heads_per_kv_head + 5),
      positions_(std::move(positions)),
      data_(query_stride_ * positions_.size()) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::generate(data_.begin(), data_.end(), [&] { return normal(random); });
}

AttendQueries RandomQueries::Part(uint32_t first_query, uint32_t num_queries) const {
  AttendQueries queries;
  queries.data = data_.data() + first_query * query_stride_;
  queries.query_stride = query_stride_;
  queries.head_stride = head_dim_;
  queries.num_queries = num_queries;
  queries.q_heads_per_kv_head = q_heads_per_kv_head_;
  queries.head_dim = head_dim_;
  queries.scale = 1.0F / std::sqrt(static_cast<float>(head_dim_));
  queries.positions = std::span(positions_).subspan(first_query, num_queries);
  return queries;
}

ChunkResult RunChunk(Isa isa, const AttendQueries& queries, std::span<const AttendSlice> chunk) {
  const size_t rows = queries.num_rows();
  ChunkResult result{std::vector<float>(rows * queries.head_dim), std::vector<float>(rows), std::vector<float>(rows)};
  AttendScratch scratch;
  RowAttention(isa, queries, scratch).Attend(chunk, nullptr, {result.out.data(), result.max.data(), result.sum.data()});
  return result;
}

std::vector<float> AttendAll(Isa isa, const AttendQueries& queries, std::span<const AttendSlice> chunk) {
  const ChunkResult result = RunChunk(isa, queries, chunk);
  std::vector<float> merged(result.out.size());
  for (size_t row = 0; row < result.max.size(); ++row) {
    const float* out = result.out.data() + row * queries.head_dim;
    MergePartials(std::span(&out, 1), std::span(&result.max[row], 1), std::span(&result.sum[row], 1),
                  std::span(merged).subspan(row * queries.head_dim, queries.head_dim));
  }
  return merged;
}

std::vector<float> AttendAllRef(const AttendQueries& queries, std::span<const AttendSlice> chunk) {
  std::vector<float> out(size_t{queries.num_rows()} * queries.head_dim);
  AttendRef(queries, chunk, out);
  return out;
}

std::vector<double> WeightsRef(const AttendQueries& queries, uint32_t row, const AttendSlice& slice) {
  const uint32_t query = row / queries.q_heads_per_kv_head;
  const float* q =
      queries.data + query * queries.query_stride + row % queries.q_heads_per_kv_head * queries.head_stride;
  const codec::TokenPageLayout& layout = *slice.segment.layout;
  std::vector<double> weights;
  double sum = 0;
  for (uint32_t t = 0; t < slice.num_tokens && static_cast<int32_t>(t) <= queries.positions[query]; ++t) {
    std::vector<uint8_t> codes(codec::RowCodeBytes(layout.codec, layout.head_dim));
    Half scale;
    Half zero;
    codec::LoadRowsRef(layout, slice.segment.pages[t / layout.capacity] + slice.segment.record_offset,
                       t % layout.capacity, 1,
                       {codes, std::span(&scale, codec::HasScale(layout.codec) ? 1 : 0),
                        std::span(&zero, codec::HasZero(layout.codec) ? 1 : 0)},
                       {});
    std::vector<float> key(layout.head_dim);
    codec::DecodeRow(layout.codec, layout.head_dim, codes.data(), scale, zero, key);
    if (slice.segment.key_mean != nullptr) {
      codec::RestoreRow(key, std::span(slice.segment.key_mean, key.size()),
                        std::span(slice.segment.key_scale, key.size()), key);
    }
    double logit = 0;
    for (uint32_t c = 0; c < layout.head_dim; ++c) {
      logit += static_cast<double>(q[c]) * static_cast<double>(key[c]);
    }
    logit *= static_cast<double>(queries.scale);
    const auto cap = static_cast<double>(queries.logit_cap);
    const bool left = queries.window > 0 && t + queries.window <= static_cast<uint32_t>(queries.positions[query]);
    weights.push_back(left ? 0.0 : std::exp(cap > 0 ? cap * std::tanh(logit / cap) : logit));
    sum += weights.back();
  }
  for (double& weight : weights) {
    weight /= sum;
  }
  return weights;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& expected) {
  double largest = 0;
  double error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    const double difference = std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
  }
  return largest == 0 ? error : error / largest;
}

}  // namespace kvant::kernels
