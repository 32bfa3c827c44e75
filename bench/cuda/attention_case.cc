#include "attention_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <thread>

#include "kvant/base/checked.h"
#include "kvant/codec/equalization.h"

namespace kvant::cuda_test {
namespace {

using codec::TokenCodec;
using kernels::cuda::kPairPageTokens;
using kernels::cuda::kTileTokens;
using kernels::cuda::PairDeviceLayout;

// Dequantized rows of one sequence and KV head, in order, and which of them are seen.
struct HeadRows {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<uint8_t> visible;
};

void Hadamard(std::span<float> x) {
  for (size_t distance = 1; distance < x.size(); distance *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & distance) == 0) {
        const float a = x[i];
        const float b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
    }
  }
  const float norm = 1.0F / std::sqrt(static_cast<float>(x.size()));
  std::for_each(x.begin(), x.end(), [&](float& v) { v *= norm; });
}

class Builder {
 public:
  explicit Builder(const CaseSpec& spec) : d_(spec.shape.head_dim), heads_(spec.shape.num_kv_heads) {
    case_.spec = spec;
    case_.softmax_scale = 1.0F / std::sqrt(static_cast<float>(d_));
  }

  AttentionCase Build() {
    MakeMaps();
    LayOut();
    rows_.resize(case_.spec.sequences.size() * heads_);
    std::vector<std::thread> threads;
    for (uint32_t head = 0; head < heads_; ++head) {
      threads.emplace_back([this, head] { FillHead(head); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    Attend();
    return std::move(case_);
  }

 private:
  codec::PairFormat Format() const {
    return {d_, kPairPageTokens, case_.spec.value_bits, d_ / case_.spec.value_groups, case_.spec.rule, case_.spec.rule};
  }

  void MakeMaps() {
    for (uint32_t head = 0; !case_.spec.maps.empty() && head < heads_; ++head) {
      const codec::WidthMap& map = case_.spec.maps[head % case_.spec.maps.size()];
      layouts_.push_back(PairDeviceLayout::Make(Format(), map).value());
      case_.maps.push_back(layouts_.back().DeviceMap());
      case_.half_three_one = case_.half_three_one && layouts_.back().IsHalfThreeOne();
      case_.max_key_columns = std::max(case_.max_key_columns, layouts_.back().key_columns);
    }
    if (!case_.spec.equalized) {
      return;
    }
    std::mt19937 random(case_.spec.seed + 99);
    std::normal_distribution<float> normal;
    for (uint32_t head = 0; head < heads_; ++head) {
      for (uint32_t i = 0; i < 2 * d_; ++i) {
        const float x = normal(random);
        case_.equalization.push_back(ToHalf(i < d_ ? 2.0F * x : 0.5F + std::fabs(x)));
      }
    }
  }

  // Sizes, page tables in a shuffled order, empty pools.
  void LayOut() {
    std::array<std::vector<uint32_t*>, kernels::cuda::kNumDecodeFormats> entries;
    std::vector<std::pair<size_t, size_t>> places;  // format, index in the page table
    case_.sequence_segments.push_back(0);
    for (const auto& sequence : case_.spec.sequences) {
      for (const SegmentSpec& spec : sequence) {
        const auto format = static_cast<size_t>(spec.format);
        HostPool& pool = case_.pools[format];
        pool.page_tokens = spec.format == DecodeFormat::kPair ? kPairPageTokens : 64;
        DecodeSegment segment{spec.format, spec.num_tokens, spec.first_visible,
                              static_cast<uint32_t>(case_.page_table.size()), 0};
        if (spec.format == DecodeFormat::kFp16 || spec.format == DecodeFormat::kBf16 ||
            (spec.format != DecodeFormat::kPair && !case_.spec.equalized)) {
          segment.map = kernels::cuda::DecodeRun::kNone;
        }
        case_.segments.push_back(segment);
        for (uint32_t page = 0; page < CeilDiv(spec.num_tokens, pool.page_tokens); ++page) {
          places.push_back({format, case_.page_table.size()});
          case_.page_table.push_back(pool.num_pages++);
        }
      }
      case_.sequence_segments.push_back(static_cast<uint32_t>(case_.segments.size()));
    }
    std::mt19937 random(case_.spec.seed + 7);
    for (size_t format = 0; format < case_.pools.size(); ++format) {
      HostPool& pool = case_.pools[format];
      pool.num_pages += 2;  // pages nobody owns
      std::vector<uint32_t> order(pool.num_pages);
      std::iota(order.begin(), order.end(), 0U);
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& [owner, index] : places) {
        if (owner == format) {
          case_.page_table[index] = order[case_.page_table[index]];
        }
      }
      pool.record_bytes = RecordBytes(static_cast<DecodeFormat>(format), pool);
      pool.page_bytes = pool.record_bytes * heads_;
      pool.bytes.assign(pool.page_bytes * pool.num_pages, std::byte{0});
    }
  }

  size_t RecordBytes(DecodeFormat format, const HostPool& pool) const {
    if (format != DecodeFormat::kPair) {
      return pool.page_tokens / kTileTokens * kernels::cuda::TokenTileBytes(kernels::cuda::TokenCodecOf(format), d_);
    }
    size_t bytes = 0;
    for (const PairDeviceLayout& layout : layouts_) {
      bytes = std::max(bytes, layout.record_bytes());
    }
    return bytes;
  }

  std::span<std::byte> Record(DecodeFormat format, uint32_t page, uint32_t head) {
    HostPool& pool = case_.pools[static_cast<size_t>(format)];
    return std::span(pool.bytes).subspan(page * pool.page_bytes + head * pool.record_bytes, pool.record_bytes);
  }

  // Keys with offsets and a few large channels, as real ones have.
  void FillHead(uint32_t head) {
    std::mt19937 random(case_.spec.seed * 1000 + head);
    std::normal_distribution<float> normal;
    std::vector<float> spread(d_);
    std::vector<float> offset(d_);
    for (uint32_t c = 0; c < d_; ++c) {
      spread[c] = case_.spec.key_spread * (c % 29 == 3 ? 3.0F : 0.7F);
      offset[c] = c % 31 == 5 ? 3.0F : 0.2F * normal(random);
    }
    for (size_t s = 0; s < case_.spec.sequences.size(); ++s) {
      for (size_t i = 0; i < case_.spec.sequences[s].size(); ++i) {
        const DecodeSegment& segment = case_.segments[case_.sequence_segments[s] + i];
        std::vector<Half> keys(size_t{segment.num_tokens} * d_);
        std::vector<Half> values(keys.size());
        for (size_t e = 0; e < keys.size(); ++e) {
          keys[e] = ToHalf(offset[e % d_] + spread[e % d_] * normal(random));
          values[e] = ToHalf(0.3F + normal(random));
        }
        FillSegment(segment, head, keys, values, rows_[s * heads_ + head]);
      }
    }
  }

  void FillSegment(const DecodeSegment& segment, uint32_t head, const std::vector<Half>& keys,
                   const std::vector<Half>& values, HeadRows& rows) {
    for (uint32_t t = 0; t < segment.num_tokens; ++t) {
      rows.visible.push_back(t >= segment.first_visible ? 1 : 0);
    }
    const size_t first = rows.keys.size();
    rows.keys.resize(first + keys.size());
    rows.values.resize(first + keys.size());
    const std::span<float> key_rows = std::span(rows.keys).subspan(first);
    const std::span<float> value_rows = std::span(rows.values).subspan(first);
    if (segment.format == DecodeFormat::kPair) {
      FillPages(segment, head, keys, values, key_rows, value_rows);
    } else if (segment.format == DecodeFormat::kBf16) {
      // Bf16 lies as fp16 does; what a row of bits means is known here only.
      FillTiles(segment, head, BitsOfBf16(keys, key_rows), BitsOfBf16(values, value_rows), {}, {});
    } else {
      FillTiles(segment, head, keys, values, key_rows, value_rows);
    }
  }

  // Numbers rounded to bf16: their bits in place of fp16's, and what they stand for.
  static std::vector<Half> BitsOfBf16(const std::vector<Half>& x, std::span<float> rounded) {
    std::vector<Half> bits(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const auto word = std::bit_cast<uint32_t>(ToFloat(x[i])) + 0x8000U;
      bits[i].bits = static_cast<uint16_t>(word >> 16);
      rounded[i] = std::bit_cast<float>(word & 0xFFFF0000U);
    }
    return bits;
  }

  void FillPages(const DecodeSegment& segment, uint32_t head, const std::vector<Half>& keys,
                 const std::vector<Half>& values, std::span<float> key_rows, std::span<float> value_rows) {
    const PairDeviceLayout& layout = layouts_[head];
    const codec::WidthMap& map = case_.spec.maps[head % case_.spec.maps.size()];
    const size_t page_elements = size_t{kPairPageTokens} * d_;
    for (uint32_t page = 0; page < segment.num_tokens / kPairPageTokens; ++page) {
      const size_t at = page * page_elements;
      const codec::PairPage encoded = codec::EncodePairPageRef(Format(), map, keys.data() + at, values.data() + at, d_);
      kernels::cuda::StorePairRecordRef(
          layout, encoded,
          Record(DecodeFormat::kPair, case_.page_table[segment.page_table + page], head).first(layout.record_bytes()));
      codec::DecodePairPageRef(Format(), encoded, key_rows.subspan(at, page_elements),
                               value_rows.subspan(at, page_elements));
      for (uint32_t t = 0; case_.spec.rotated && t < kPairPageTokens; ++t) {
        Hadamard(value_rows.subspan(at + size_t{t} * d_, d_));
      }
    }
  }

  void FillTiles(const DecodeSegment& segment, uint32_t head, const std::vector<Half>& keys,
                 const std::vector<Half>& values, std::span<float> key_rows, std::span<float> value_rows) {
    const TokenCodec codec = kernels::cuda::TokenCodecOf(segment.format);
    const bool equalized = segment.map != kernels::cuda::DecodeRun::kNone;
    const std::span<const Half> all(case_.equalization);
    const std::span<const Half> mean = equalized ? all.subspan(size_t{head} * 2 * d_, d_) : all.first(0);
    const std::span<const Half> scale = equalized ? all.subspan(size_t{head} * 2 * d_ + d_, d_) : all.first(0);
    const uint32_t page_tokens = case_.pools[static_cast<size_t>(segment.format)].page_tokens;
    for (uint32_t first = 0; first < segment.num_tokens; first += page_tokens) {
      const uint32_t count = std::min(page_tokens, segment.num_tokens - first);
      std::vector<Half> page_keys(keys.begin() + first * d_, keys.begin() + (first + count) * d_);
      for (uint32_t t = 0; equalized && t < count; ++t) {
        const std::span<Half> row = std::span(page_keys).subspan(size_t{t} * d_, d_);
        codec::EqualizeRow(row, mean, scale, row);
      }
      const Rows key_codes = Encode(codec, page_keys.data(), count);
      const Rows value_codes = Encode(codec, values.data() + size_t{first} * d_, count);
      kernels::cuda::StoreTokenTilesRef(
          codec, d_, Record(segment.format, case_.page_table[segment.page_table + first / page_tokens], head), 0, count,
          key_codes.Const(), value_codes.Const());
      for (uint32_t t = 0; !key_rows.empty() && t < count; ++t) {
        const size_t at = size_t{first + t} * d_;
        DecodeOne(codec, key_codes, t, key_rows.subspan(at, d_));
        DecodeOne(codec, value_codes, t, value_rows.subspan(at, d_));
        if (equalized) {
          std::vector<float> row(key_rows.begin() + at, key_rows.begin() + at + d_);
          codec::RestoreRow(row, mean, scale, key_rows.subspan(at, d_));
        }
      }
    }
  }

  struct Rows {
    std::vector<uint8_t> codes;
    std::vector<Half> scales;
    std::vector<Half> zeros;
    codec::ConstTokenRows Const() const { return {codes, scales, zeros}; }
  };

  Rows Encode(TokenCodec codec, const Half* src, uint32_t count) const {
    Rows rows{std::vector<uint8_t>(count * codec::RowCodeBytes(codec, d_)),
              std::vector<Half>(codec::HasScale(codec) ? count : 0),
              std::vector<Half>(codec::HasZero(codec) ? count : 0)};
    codec::EncodeRowsRef(codec, d_, src, d_, count, {rows.codes, rows.scales, rows.zeros});
    return rows;
  }

  void DecodeOne(TokenCodec codec, const Rows& rows, uint32_t t, std::span<float> dst) const {
    codec::DecodeRow(codec, d_, rows.codes.data() + t * codec::RowCodeBytes(codec, d_),
                     codec::HasScale(codec) ? rows.scales[t] : Half{}, codec::HasZero(codec) ? rows.zeros[t] : Half{},
                     dst);
  }

  void Attend() {
    const uint32_t q_heads = case_.spec.shape.num_q_heads();
    const size_t sequences = case_.spec.sequences.size();
    std::mt19937 random(case_.spec.seed + 5);
    std::normal_distribution<float> normal;
    case_.q.resize(sequences * q_heads * d_);
    std::generate(case_.q.begin(), case_.q.end(), [&] { return normal(random); });
    case_.expected.resize(case_.q.size());
    std::vector<std::thread> threads;
    for (uint32_t worker = 0; worker < 16; ++worker) {
      threads.emplace_back([this, worker, sequences, q_heads] {
        for (size_t row = worker; row < sequences * q_heads; row += 16) {
          const size_t head = row % q_heads / case_.spec.shape.q_heads_per_kv_head;
          AttendRow(rows_[row / q_heads * heads_ + head], std::span(case_.q).subspan(row * d_, d_),
                    std::span(case_.expected).subspan(row * d_, d_));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void AttendRow(const HeadRows& rows, std::span<const float> q, std::span<float> out) const {
    std::vector<double> logits(rows.visible.size(), -1e300);
    double most = -1e300;
    for (size_t t = 0; t < logits.size(); ++t) {
      if (rows.visible[t] == 0) {
        continue;
      }
      double dot = 0;
      for (uint32_t c = 0; c < d_; ++c) {
        dot += double{q[c]} * double{rows.keys[t * d_ + c]};
      }
      dot *= double{case_.softmax_scale};
      const double cap = case_.spec.soft_cap;
      logits[t] = cap > 0 ? cap * std::tanh(dot / cap) : dot;
      most = std::max(most, logits[t]);
    }
    std::vector<double> sum(d_, 0.0);
    double total = 0;
    for (size_t t = 0; t < logits.size(); ++t) {
      const double p = rows.visible[t] == 0 ? 0.0 : std::exp(logits[t] - most);
      total += p;
      for (uint32_t c = 0; c < d_; ++c) {
        sum[c] += p * double{rows.values[t * d_ + c]};
      }
    }
    std::transform(sum.begin(), sum.end(), out.begin(), [&](double x) { return static_cast<float>(x / total); });
  }

  uint32_t d_;
  uint32_t heads_;
  AttentionCase case_;
  std::vector<PairDeviceLayout> layouts_;
  std::vector<HeadRows> rows_;
};

}  // namespace

AttentionCase MakeCase(const CaseSpec& spec) { return Builder(spec).Build(); }

codec::WidthMap UniformMap(uint32_t head_dim, uint32_t width) {
  return {codec::PairLayout::kHalfSplit, std::vector<uint8_t>(head_dim / 2, static_cast<uint8_t>(width))};
}

codec::WidthMap HalfThreeOne(uint32_t head_dim, uint32_t seed) {
  codec::WidthMap map = UniformMap(head_dim, 1);
  std::fill(map.widths.begin(), map.widths.begin() + head_dim / 4, uint8_t{3});
  std::mt19937 random(seed);
  std::shuffle(map.widths.begin(), map.widths.end(), random);
  return map;
}

codec::WidthMap MixedMap(uint32_t head_dim, double mean, uint32_t seed) {
  codec::WidthMap map = UniformMap(head_dim, 1);
  std::mt19937 random(seed);
  auto left = static_cast<uint32_t>((mean - 1.0) * head_dim / 2);
  while (left > 0) {
    uint8_t& width = map.widths[random() % map.widths.size()];
    if (width < 4 && random() % 2 < width) {  // the wide get wider
      ++width;
      --left;
    }
  }
  return map;
}

}  // namespace kvant::cuda_test
