#include "kvant/codec/pair_page.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "kvant/base/check.h"
#include "kvant/quant/group.h"
#include "kvant/quant/mid_rise.h"
#include "kvant/quant/two_means.h"

namespace kvant::codec {
namespace {

quant::GroupParams QuantizeGroup(KeyRule rule, int bits, std::span<const float> x, std::span<uint8_t> codes) {
  const bool min_max = bits == 1 ? rule.one_bit == OneBitRule::kEndPoints : rule.rule == PairRule::kMinMax;
  if (min_max) {
    const quant::GroupParams params = quant::FitGroup(quant::Rule::kAffine, bits, x);
    quant::EncodeGroup(quant::Rule::kAffine, bits, params, x, codes);
    return params;
  }
  const bool means = bits == 1 && rule.one_bit == OneBitRule::kMeans;
  const quant::GroupParams params = means ? quant::FitTwoMeans(x) : quant::FitMidRise(bits, x);
  quant::EncodeMidRise(bits, params, x, codes);
  return params;
}

void EncodeKeys(const PairFormat& format, const WidthMap& map, const Half* keys, size_t stride, PairPage* page) {
  std::vector<float> column(format.page_tokens);
  std::vector<uint8_t> codes(format.page_tokens);
  for (uint32_t c = 0; c < format.head_dim; ++c) {
    for (uint32_t t = 0; t < format.page_tokens; ++t) {
      column[t] = ToFloat(keys[t * stride + c]);
    }
    const quant::GroupParams params =
        QuantizeGroup({format.key_rule, format.one_bit}, static_cast<int>(map.WidthOf(c)), column, codes);
    page->key_scales[c] = params.scale;
    page->key_zeros[c] = params.zero;
    for (uint32_t t = 0; t < format.page_tokens; ++t) {
      page->key_codes[size_t{t} * format.head_dim + c] = codes[t];
    }
  }
}

void EncodeValues(const PairFormat& format, const Half* values, size_t stride, PairPage* page) {
  std::vector<float> group(format.value_group);
  for (uint32_t t = 0; t < format.page_tokens; ++t) {
    for (uint32_t g = 0; g < format.ValueGroups(); ++g) {
      const size_t first = size_t{g} * format.value_group;
      ToFloat(std::span(values + t * stride + first, format.value_group), group);
      const size_t at = size_t{t} * format.ValueGroups() + g;
      const quant::GroupParams params =
          QuantizeGroup({format.value_rule}, static_cast<int>(format.value_bits), group,
                        std::span(page->value_codes).subspan(size_t{t} * format.head_dim + first, format.value_group));
      page->value_scales[at] = params.scale;
      page->value_zeros[at] = params.zero;
    }
  }
}

PairPage EmptyPage(const PairFormat& format) {
  const size_t elements = size_t{format.page_tokens} * format.head_dim;
  const size_t groups = size_t{format.page_tokens} * format.ValueGroups();
  return {std::vector<uint8_t>(elements), std::vector<Half>(format.head_dim), std::vector<Half>(format.head_dim),
          std::vector<uint8_t>(elements), std::vector<Half>(groups),          std::vector<Half>(groups)};
}

void SetBit(std::byte* bits, size_t index, unsigned value) {
  bits[index / 8] |= static_cast<std::byte>((value & 1U) << (index % 8));
}
unsigned GetBit(const std::byte* bits, size_t index) {
  return (static_cast<unsigned>(bits[index / 8]) >> (index % 8)) & 1U;
}

// Calls visit(channel, plane, byte offset) for every key plane in stored order.
template <typename Visit>
void ForEachPlane(const PairFormat& format, const WidthMap& map, Visit visit) {
  size_t offset = 0;
  for (uint32_t plane = 0; plane < WidthMap::kMaxKeyBits; ++plane) {
    for (uint32_t c = 0; c < format.head_dim; ++c) {
      if (map.WidthOf(c) > plane) {
        visit(c, plane, offset);
        offset += format.page_tokens / 8;
      }
    }
  }
}

void CopyHalves(const std::vector<Half>& src, std::byte* dst) { std::memcpy(dst, src.data(), src.size() * 2); }
void CopyHalves(const std::byte* src, std::vector<Half>* dst) { std::memcpy(dst->data(), src, dst->size() * 2); }

Status OutOfRange(const char* what, uint32_t value) {
  return {StatusCode::kInvalidArgument, std::string(what) + " " + std::to_string(value) + " is not supported"};
}

}  // namespace

uint32_t WidthMap::PairOf(uint32_t channel) const {
  return pairs == PairLayout::kInterleaved ? channel / 2 : channel % static_cast<uint32_t>(widths.size());
}

uint32_t WidthMap::BitsPerKey() const { return 2 * std::accumulate(widths.begin(), widths.end(), 0U); }

WidthMap TwoWidthMap(PairLayout pairs, uint32_t low, uint32_t high, std::span<const bool> salient) {
  WidthMap map{pairs, std::vector<uint8_t>(salient.size())};
  std::transform(salient.begin(), salient.end(), map.widths.begin(),
                 [&](bool is_salient) { return static_cast<uint8_t>(is_salient ? high : low); });
  return map;
}

std::vector<uint32_t> ChannelOrder(const WidthMap& map) {
  std::vector<uint32_t> order(map.head_dim());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return map.WidthOf(a) > map.WidthOf(b); });
  return order;
}

Status CheckPairFormat(const PairFormat& format) {
  if (format.head_dim < 32 || format.head_dim > 256 || format.head_dim % kMinValueGroup != 0) {
    return {StatusCode::kModelUnsupported,
            "head dimension " + std::to_string(format.head_dim) +
                " is not supported by pair pages: groups of 16 channels make a head, 32 to 256 channels in all"};
  }
  if (format.page_tokens != 32 && format.page_tokens != 64 && format.page_tokens != 128) {
    return OutOfRange("a page of tokens:", format.page_tokens);
  }
  if (format.value_bits != 8 && (format.value_bits < 2 || format.value_bits > 4)) {
    return OutOfRange("value bits:", format.value_bits);
  }
  if (format.value_group == 0 || format.value_group % kMinValueGroup != 0 ||
      format.head_dim % format.value_group != 0) {
    return {StatusCode::kInvalidArgument,
            "value groups of " + std::to_string(format.value_group) + " channels do not make a head dimension of " +
                std::to_string(format.head_dim) + ": a multiple of 16 that divides it is needed"};
  }
  return OkStatus();
}

Status CheckPairFormat(const PairFormat& format, const WidthMap& map) {
  KVANT_RETURN_IF_ERROR(CheckPairFormat(format));
  if (map.head_dim() != format.head_dim) {
    return OutOfRange("a width map of head dimension", map.head_dim());
  }
  for (const uint8_t width : map.widths) {
    if (width < 1 || width > WidthMap::kMaxKeyBits) {
      return OutOfRange("key bits:", width);
    }
  }
  return OkStatus();
}

PairPageLayout PairPageLayout::Make(const PairFormat& format, const WidthMap& map) {
  PairPageLayout layout;
  layout.key_scales = size_t{map.BitsPerKey()} * format.page_tokens / 8;
  layout.key_zeros = layout.key_scales + size_t{2} * format.head_dim;
  layout.value_codes = layout.key_zeros + size_t{2} * format.head_dim;
  layout.value_scales = layout.value_codes + size_t{format.page_tokens} * format.head_dim * format.value_bits / 8;
  layout.value_zeros = layout.value_scales + size_t{2} * format.page_tokens * format.ValueGroups();
  layout.total_bytes = layout.value_zeros + size_t{2} * format.page_tokens * format.ValueGroups();
  return layout;
}

PairPage EncodePairPageRef(const PairFormat& format, const WidthMap& map, const Half* keys, const Half* values,
                           size_t stride) {
  KVANT_CHECK(CheckPairFormat(format, map).ok(), "formats are checked where they enter");
  PairPage page = EmptyPage(format);
  EncodeKeys(format, map, keys, stride, &page);
  EncodeValues(format, values, stride, &page);
  return page;
}

void RoundTripKeyGroup(KeyRule rule, uint32_t bits, std::span<float> keys) {
  std::vector<uint8_t> codes(keys.size());
  const quant::GroupParams params = QuantizeGroup(rule, static_cast<int>(bits), keys, codes);
  quant::DecodeGroup(quant::Rule::kAffine, static_cast<int>(bits), params, codes, keys);
}

double KeyGroupError(KeyRule rule, uint32_t bits, std::span<const float> keys) {
  std::vector<float> read(keys.begin(), keys.end());
  RoundTripKeyGroup(rule, bits, read);
  double sum = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const float error = keys[i] - read[i];
    sum += static_cast<double>(error) * static_cast<double>(error);
  }
  return sum;
}

void DecodePairPageRef(const PairFormat& format, const PairPage& page, std::span<float> keys, std::span<float> values) {
  for (size_t t = 0; t < format.page_tokens; ++t) {
    for (size_t c = 0; c < format.head_dim; ++c) {
      const size_t at = t * format.head_dim + c;
      const size_t group = t * format.ValueGroups() + c / format.value_group;
      keys[at] = ToFloat(page.key_scales[c]) * static_cast<float>(page.key_codes[at]) + ToFloat(page.key_zeros[c]);
      values[at] = ToFloat(page.value_scales[group]) * static_cast<float>(page.value_codes[at]) +
                   ToFloat(page.value_zeros[group]);
    }
  }
}

void RotateRow(std::span<float> row) {
  const size_t run = row.size() & (~row.size() + 1);
  for (size_t half = 1; half < run; half *= 2) {
    for (size_t first = 0; first < row.size(); first += 2 * half) {
      for (size_t i = first; i < first + half; ++i) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
  const float norm = 1.0F / std::sqrt(static_cast<float>(run));
  for (float& x : row) {
    x *= norm;
  }
}

void SerializePairPage(const PairFormat& format, const WidthMap& map, const PairPage& page,
                       std::span<std::byte> bytes) {
  const PairPageLayout layout = PairPageLayout::Make(format, map);
  KVANT_CHECK(bytes.size() == layout.total_bytes, "the caller sized the page by PairPageLayout");
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  ForEachPlane(format, map, [&](uint32_t c, uint32_t plane, size_t offset) {
    for (uint32_t t = 0; t < format.page_tokens; ++t) {
      SetBit(bytes.data() + offset, t, page.key_codes[size_t{t} * format.head_dim + c] >> plane);
    }
  });
  for (size_t i = 0; i < page.value_codes.size(); ++i) {
    for (uint32_t bit = 0; bit < format.value_bits; ++bit) {
      SetBit(bytes.data() + layout.value_codes, i * format.value_bits + bit, page.value_codes[i] >> bit);
    }
  }
  CopyHalves(page.key_scales, bytes.data() + layout.key_scales);
  CopyHalves(page.key_zeros, bytes.data() + layout.key_zeros);
  CopyHalves(page.value_scales, bytes.data() + layout.value_scales);
  CopyHalves(page.value_zeros, bytes.data() + layout.value_zeros);
}

PairPage ParsePairPage(const PairFormat& format, const WidthMap& map, std::span<const std::byte> bytes) {
  const PairPageLayout layout = PairPageLayout::Make(format, map);
  KVANT_CHECK(bytes.size() == layout.total_bytes, "the caller sized the page by PairPageLayout");
  PairPage page = EmptyPage(format);
  ForEachPlane(format, map, [&](uint32_t c, uint32_t plane, size_t offset) {
    for (uint32_t t = 0; t < format.page_tokens; ++t) {
      page.key_codes[size_t{t} * format.head_dim + c] |=
          static_cast<uint8_t>(GetBit(bytes.data() + offset, t) << plane);
    }
  });
  for (size_t i = 0; i < page.value_codes.size(); ++i) {
    for (uint32_t bit = 0; bit < format.value_bits; ++bit) {
      page.value_codes[i] |=
          static_cast<uint8_t>(GetBit(bytes.data() + layout.value_codes, i * format.value_bits + bit) << bit);
    }
  }
  CopyHalves(bytes.data() + layout.key_scales, &page.key_scales);
  CopyHalves(bytes.data() + layout.key_zeros, &page.key_zeros);
  CopyHalves(bytes.data() + layout.value_scales, &page.value_scales);
  CopyHalves(bytes.data() + layout.value_zeros, &page.value_zeros);
  return page;
}

}  // namespace kvant::codec
