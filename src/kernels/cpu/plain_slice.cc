#include "kvant/kernels/plain_slice.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kvant/codec/equalization.h"

namespace kvant::kernels {
namespace {

using codec::TokenPageLayout;

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

}  // namespace

PlainSlice LoadPlainSlice(const AttendSlice& slice) {
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

}  // namespace kvant::kernels
