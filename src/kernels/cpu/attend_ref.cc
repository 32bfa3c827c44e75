#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kvant/base/check.h"
#include "kvant/codec/equalization.h"
#include "kvant/kernels/attend.h"

namespace kvant::kernels {
namespace {

using codec::TokenPageLayout;

// One slice, dequantized.
struct PlainSlice {
  std::vector<float> keys;  // [num_tokens, head_dim]
  std::vector<float> values;
  std::vector<int32_t> positions;
  uint32_t num_tokens = 0;
};

void LoadToken(const AttendSegment& segment, uint32_t token, std::span<float> key, std::span<float> value) {
  const TokenPageLayout& layout = *segment.layout;
  const size_t row_bytes = codec::RowCodeBytes(layout.codec, layout.head_dim);
  std::array<uint8_t, 2 * codec::kMaxHeadDim> key_codes{};
  std::array<uint8_t, 2 * codec::kMaxHeadDim> value_codes{};
  std::array<Half, 4> params{};  // key scale and zero, value scale and zero
  const auto rows = [&](std::array<uint8_t, 2 * codec::kMaxHeadDim>& codes, size_t param) {
    return codec::TokenRows{std::span(codes).first(row_bytes), std::span(params).subspan(param, 1),
                            std::span(params).subspan(param + 1, 1)};
  };
  const std::byte* record = segment.pages[token / layout.capacity] + segment.record_offset;
  codec::LoadRowsRef(layout, record, token % layout.capacity, 1, rows(key_codes, 0), rows(value_codes, 2));
  codec::DecodeRow(layout.codec, layout.head_dim, key_codes.data(), params[0], params[1], key);
  codec::DecodeRow(layout.codec, layout.head_dim, value_codes.data(), params[2], params[3], value);
  if (segment.key_mean != nullptr) {
    codec::RestoreRow(key, std::span(segment.key_mean, layout.head_dim), std::span(segment.key_scale, layout.head_dim),
                      key);
  }
}

// All tokens of a slice of pair pages, page by page.
void LoadPairPages(const AttendSlice& slice, PlainSlice* plain) {
  const PairPlan& plan = *slice.segment.pair;
  const codec::PairFormat& format = plan.format();
  const size_t elements = size_t{format.page_tokens} * format.head_dim;
  std::vector<float> keys(elements);
  std::vector<float> values(elements);
  for (uint32_t t = 0; t < slice.num_tokens; t += format.page_tokens) {
    const std::byte* page = slice.segment.pages[(slice.first_token + t) / format.page_tokens];
    codec::DecodePairPageRef(
        format,
        codec::ParsePairPage(format, plan.map(), {page + slice.segment.record_offset, plan.layout().total_bytes}), keys,
        values);
    for (uint32_t i = 0; i < format.page_tokens && slice.segment.rotated_values; ++i) {
      codec::RotateRow(std::span(values).subspan(size_t{i} * format.head_dim, format.head_dim));
    }
    const size_t count = size_t{std::min(format.page_tokens, slice.num_tokens - t)} * format.head_dim;
    std::copy_n(keys.begin(), count, plain->keys.begin() + size_t{t} * format.head_dim);
    std::copy_n(values.begin(), count, plain->values.begin() + size_t{t} * format.head_dim);
  }
}

PlainSlice Load(const AttendSlice& slice) {
  const size_t head_dim = slice.segment.head_dim();
  PlainSlice plain;
  plain.num_tokens = slice.num_tokens;
  plain.keys.resize(slice.num_tokens * head_dim);
  plain.values.resize(slice.num_tokens * head_dim);
  for (uint32_t t = 0; t < slice.num_tokens; ++t) {
    const uint32_t token = slice.first_token + t;
    plain.positions.push_back(slice.segment.positions != nullptr
                                  ? slice.segment.positions[token]
                                  : slice.segment.first_position + static_cast<int32_t>(token));
  }
  if (slice.segment.pair != nullptr) {
    LoadPairPages(slice, &plain);
    return plain;
  }
  for (uint32_t t = 0; t < slice.num_tokens; ++t) {
    const uint32_t token = slice.first_token + t;
    LoadToken(slice.segment, token, std::span(plain.keys).subspan(t * head_dim, head_dim),
              std::span(plain.values).subspan(t * head_dim, head_dim));
  }
  return plain;
}

double Dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

double Capped(double logit, float cap) {
  return cap > 0.0F ? static_cast<double>(cap) * std::tanh(logit / static_cast<double>(cap)) : logit;
}

bool Sees(const AttendQueries& queries, int32_t position, int32_t token) {
  return token <= position && (queries.window == 0 || token > int64_t{position} - queries.window);
}

// Two passes over the visible tokens: the maximum, then the weighted values.
void AttendRow(const AttendQueries& queries, const float* q, int32_t position, const std::vector<PlainSlice>& slices,
               std::span<float> dst) {
  const size_t head_dim = queries.head_dim;
  std::vector<double> logits;
  std::vector<const float*> values;
  for (const PlainSlice& slice : slices) {
    for (uint32_t t = 0; t < slice.num_tokens; ++t) {
      if (Sees(queries, position, slice.positions[t])) {
        const double logit = static_cast<double>(queries.scale) * Dot(q, slice.keys.data() + t * head_dim, head_dim);
        logits.push_back(Capped(logit, queries.logit_cap));
        values.push_back(slice.values.data() + t * head_dim);
      }
    }
  }
  KVANT_CHECK(!logits.empty(), "every row sees at least its own token");
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out(head_dim, 0.0);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(logits[i] - max);
    sum += p;
    for (size_t c = 0; c < head_dim; ++c) {
      out[c] += p * static_cast<double>(values[i][c]);
    }
  }
  std::transform(out.begin(), out.end(), dst.begin(), [sum](double x) { return static_cast<float>(x / sum); });
}

}  // namespace

void AttendRef(const AttendQueries& queries, std::span<const AttendSlice> slices, std::span<float> dst) {
  KVANT_CHECK(dst.size() == size_t{queries.num_rows()} * queries.head_dim, "one output a row");
  std::vector<PlainSlice> plain;
  plain.reserve(slices.size());
  std::transform(slices.begin(), slices.end(), std::back_inserter(plain), Load);
  for (uint32_t row = 0; row < queries.num_rows(); ++row) {
    const uint32_t query = row / queries.q_heads_per_kv_head;
    const uint32_t head = row % queries.q_heads_per_kv_head;
    AttendRow(queries, queries.data + query * queries.query_stride + head * queries.head_stride,
              queries.positions[query], plain, dst.subspan(size_t{row} * queries.head_dim, queries.head_dim));
  }
}

}  // namespace kvant::kernels
