#include "kvant/codec/progressive.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "cache/row_buffer.h"
#include "kvant/base/check.h"
#include "kvant/cache/sequence.h"
#include "kvant/codec/equalization.h"
#include "kvant/kernels/equalize.h"

// The progressive code in a layer: into blocks, out of them into pages of plain codecs, and from tier to tier.
namespace kvant::cache {
namespace {

using codec::Tier;
using codec::TokenCodec;

// Encoded rows of one tier of one KV head, as its pages' codec has them.
struct RowList {
  void Resize(const codec::RowFormat& format, uint32_t count) {
    codes.resize(count * format.code_bytes);
    scales.resize(format.has_scale ? count : 0);
    zeros.resize(format.has_zero ? count : 0);
  }
  void Append(const codec::RowFormat& format, const RowList& from, uint32_t row) {
    const auto first = from.codes.begin() + static_cast<ptrdiff_t>(row * format.code_bytes);
    codes.insert(codes.end(), first, first + static_cast<ptrdiff_t>(format.code_bytes));
    if (format.has_scale) {
      scales.push_back(from.scales[row]);
    }
    if (format.has_zero) {
      zeros.push_back(from.zeros[row]);
    }
  }
  codec::TokenRows rows() { return {codes, scales, zeros}; }

  std::vector<uint8_t> codes;
  std::vector<Half> scales;
  std::vector<Half> zeros;
};

// Where the planes of a head stand that have not been used yet.
struct PlaneCursor {
  const std::byte* middle;
  const std::byte* rest;
};

// One row with all planes to fp16; of keys back through the map.
void DecodeFineRow(uint32_t head_dim, const uint8_t* codes, const uint8_t* rest, Half scale,
                   const codec::Equalization* map, uint32_t kv_head, Half* dst) {
  std::array<float, codec::kMaxHeadDim> row{};
  const std::span<float> x(row.data(), head_dim);
  codec::DecodeFine(head_dim, codes, rest, scale, row.data());
  if (map != nullptr) {
    codec::RestoreRow(x, map->MeanOf(kv_head), map->ScaleOf(kv_head), x);
  }
  for (uint32_t c = 0; c < head_dim; ++c) {
    dst[c] = ToHalf(std::clamp(row[c], -kHalfMax, kHalfMax));
  }
}

// A token's row, raised by planes at the cursor, which moves on.
void Raise(uint32_t head_dim, Tier from, Tier to, const RowList& source, uint32_t row, const codec::Equalization* map,
           uint32_t kv_head, PlaneCursor& cursor, RowList& out) {
  std::array<uint8_t, codec::kMaxHeadDim> codes{};
  Half scale = source.scales[row];
  if (from == Tier::kInt4) {
    const size_t row_bytes = codec::RowCodeBytes(TokenCodec::kInt4, head_dim);
    codec::JoinPlanes(head_dim, source.codes.data() + row * row_bytes, reinterpret_cast<const uint8_t*>(cursor.middle),
                      1, codes.data());
    cursor.middle += row_bytes;
    scale = codec::FineScale(scale);
  } else {
    std::copy_n(source.codes.data() + size_t{row} * head_dim, head_dim, codes.data());
  }
  if (to == Tier::kInt8) {
    out.codes.insert(out.codes.end(), codes.data(), codes.data() + head_dim);
    out.scales.push_back(scale);
    return;
  }
  std::array<Half, codec::kMaxHeadDim> exact;
  DecodeFineRow(head_dim, codes.data(), reinterpret_cast<const uint8_t*>(cursor.rest), scale, map, kv_head,
                exact.data());
  cursor.rest += head_dim;
  const auto* bytes = reinterpret_cast<const uint8_t*>(exact.data());
  out.codes.insert(out.codes.end(), bytes, bytes + head_dim * sizeof(Half));
}

// Puts the missing planes of rows one after the other.
class PlaneWriter {
 public:
  PlaneWriter(const kernels::RowKernels& rows, uint32_t head_dim, std::byte* middle, std::byte* rest)
      : rows_(rows), head_dim_(head_dim), middle_(middle), rest_(rest) {}

  void Write(const Half* row, Tier from, Tier to) {
    const std::span<uint8_t> codes = std::span(codes_).first(head_dim_);
    rows_.encode(TokenCodec::kInt8, head_dim_, row, head_dim_, 1, {codes, std::span(&scale_, 1), {}});
    if (from == Tier::kInt4) {
      codec::MiddlePlane(head_dim_, codes.data(), 1, reinterpret_cast<uint8_t*>(middle_));
      middle_ += codec::RowCodeBytes(TokenCodec::kInt4, head_dim_);
    }
    if (to == Tier::kFp16) {
      codec::EncodeRest(head_dim_, row, 1, {codes, std::span(&scale_, 1), {}}, reinterpret_cast<uint8_t*>(rest_));
      rest_ += head_dim_;
    }
  }

 private:
  const kernels::RowKernels& rows_;
  const uint32_t head_dim_;
  std::byte* middle_;
  std::byte* rest_;
  std::array<uint8_t, codec::kMaxHeadDim> codes_{};
  Half scale_;
};

}  // namespace

void EncodePlanes(const kernels::RowKernels& rows, Tier tier, uint32_t head_dim, const Half* src, uint32_t count,
                  Planes& planes, const codec::TokenRows& out) {
  if (tier == Tier::kInt8) {
    return rows.encode(TokenCodec::kInt8, head_dim, src, head_dim, count, out);
  }
  planes.codes.resize(size_t{count} * head_dim);
  rows.encode(TokenCodec::kInt8, head_dim, src, head_dim, count, {planes.codes, out.scales, {}});
  if (tier == Tier::kInt4) {
    return codec::TopPlane(head_dim, planes.codes.data(), count, out.codes.data());
  }
  planes.rest.resize(planes.codes.size());
  codec::EncodeRest(head_dim, src, count, {planes.codes, out.scales, {}}, planes.rest.data());
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* row = out.codes.data() + size_t{2} * i * head_dim;
    std::copy_n(planes.codes.data() + size_t{i} * head_dim, head_dim, row);
    std::copy_n(planes.rest.data() + size_t{i} * head_dim, head_dim, row + head_dim);
  }
}

void LayerCache::StoreTier(Tier tier, uint32_t kv_head, uint32_t first, uint32_t count,
                           const codec::ConstTokenRows& keys, const codec::ConstTokenRows& values) {
  if (!precision_.is_progressive() || tier == Tier::kInt8) {
    return StoreRows(run(tier), kv_head, first, count, keys, values);
  }
  const uint32_t head_dim = shape_.head_dim;
  if (tier == Tier::kInt4) {
    RowList params[2];
    const auto coarse = [&](const codec::ConstTokenRows& rows, RowList& to) {
      for (const Half scale : rows.scales) {
        const quant::GroupParams group = codec::CoarseParams(scale);
        to.scales.push_back(group.scale);
        to.zeros.push_back(group.zero);
      }
      return codec::ConstTokenRows{rows.codes, to.scales, to.zeros};
    };
    return StoreRows(run(tier), kv_head, first, count, coarse(keys, params[0]), coarse(values, params[1]));
  }
  std::vector<Half> exact_keys(size_t{kBatchTokens} * head_dim);
  std::vector<Half> exact_values(exact_keys.size());
  for (uint32_t done = 0; done < count; done += kBatchTokens) {
    const uint32_t batch = std::min(kBatchTokens, count - done);
    const auto decode = [&](const codec::ConstTokenRows& rows, const codec::Equalization* map, Half* to) {
      for (uint32_t i = 0; i < batch; ++i) {
        const uint8_t* row = rows.codes.data() + size_t{2} * (done + i) * head_dim;
        DecodeFineRow(head_dim, row, row + head_dim, rows.scales[done + i], map, kv_head, to + size_t{i} * head_dim);
      }
    };
    decode(keys, &*equalization_, exact_keys.data());
    decode(values, nullptr, exact_values.data());
    StoreRun(run(tier), kv_head, first + done, batch, exact_keys.data(), exact_values.data(), head_dim);
  }
}

void LayerCache::WriteUpgrade(const codec::UpgradeLayout& layout, const codec::TierMap& from, const codec::TierMap& to,
                              std::span<std::byte> block, ThreadPool* pool) const {
  const uint32_t first = num_unreachable_residual();
  KVANT_CHECK(num_encoded() == 0 && first + layout.num_tokens <= residual_.num_tokens(), "the layer is still exact");
  const codec::Equalization map = MeasureEqualization(pool);
  const uint32_t head_dim = shape_.head_dim;
  ForEachHead(pool, [&](uint32_t kv_head) {
    const codec::UpgradeHead<std::byte> head = codec::HeadOf(layout, block, kv_head);
    const std::span<const Tier> ids = to.OfHead(kv_head);
    const Result<codec::TierMoves> moves = codec::CountMoves(from.OfHead(kv_head), ids);
    KVANT_CHECK(moves.ok() && *moves == layout.moves, "every head raises as many tokens as the layout says");
    codec::PackTierIds(ids, head.tier_ids);
    PlaneWriter key_writer(*rows_, head_dim, head.key_middles.data(), head.key_rests.data());
    PlaneWriter value_writer(*rows_, head_dim, head.value_middles.data(), head.value_rests.data());
    std::vector<Half> keys(size_t{kBatchTokens} * head_dim);
    std::vector<Half> values(keys.size());
    for (uint32_t done = 0; done < layout.num_tokens; done += kBatchTokens) {
      const uint32_t batch = std::min(kBatchTokens, layout.num_tokens - done);
      LoadRun(residual_, kv_head, first + done, batch, keys.data(), values.data());
      kernels::EqualizeKernelsOf(isa_).equalize(head_dim, map.MeanOf(kv_head).data(), map.ScaleOf(kv_head).data(),
                                                keys.data(), batch);
      for (uint32_t i = 0; i < batch; ++i) {
        const Tier was = from.OfHead(kv_head)[done + i];
        if (ids[done + i] != was) {
          key_writer.Write(&keys[size_t{i} * head_dim], was, ids[done + i]);
          value_writer.Write(&values[size_t{i} * head_dim], was, ids[done + i]);
        }
      }
    }
  });
}

codec::TierMap LayerCache::EncodedTiers(uint32_t num_tokens) const {
  KVANT_CHECK(precision_.spectrum && num_skipped_ + num_tokens <= num_encoded(), "encoded tokens of a spectrum");
  codec::TierMap map;
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    std::vector<Tier> ids(num_tokens, Tier::kDropped);
    for (const Tier tier : codec::kStoredTiers) {
      for (const int32_t position : positions_[static_cast<size_t>(tier)][kv_head]) {
        const uint32_t token = static_cast<uint32_t>(position) - sinks_.num_tokens() - num_skipped_;
        if (token < num_tokens) {
          ids[token] = tier;
        }
      }
    }
    map.counts = codec::CountTiers(ids);
    map.ids.insert(map.ids.end(), ids.begin(), ids.end());
  }
  return map;
}

// A KV head's rows by tier, with their positions.
struct LayerCache::RaisedHead {
  std::array<RowList, codec::kNumStoredTiers> keys;
  std::array<RowList, codec::kNumStoredTiers> values;
  std::array<std::vector<int32_t>, codec::kNumStoredTiers> positions;
};

void LayerCache::RaiseHead(const codec::UpgradeHead<const std::byte>& planes, std::span<const Tier> from,
                           std::span<const Tier> to, uint32_t kv_head, RaisedHead* raised) const {
  std::array<RowList, codec::kNumStoredTiers> keys;
  std::array<RowList, codec::kNumStoredTiers> values;
  std::array<codec::RowFormat, codec::kNumStoredTiers> formats;
  for (const Tier tier : codec::kStoredTiers) {
    const auto index = static_cast<size_t>(tier);
    formats[index] = codec::FormatOf(run(tier).layout().codec, shape_.head_dim);
    keys[index].Resize(formats[index], run(tier).num_tokens());
    values[index].Resize(formats[index], run(tier).num_tokens());
    LoadRows(run(tier), kv_head, keys[index].rows(), values[index].rows());
  }
  PlaneCursor key_planes{planes.key_middles.data(), planes.key_rests.data()};
  PlaneCursor value_planes{planes.value_middles.data(), planes.value_rests.data()};
  std::array<uint32_t, codec::kNumStoredTiers> next{};
  const auto keep = [&](Tier tier) {
    const auto index = static_cast<size_t>(tier);
    raised->keys[index].Append(formats[index], keys[index], next[index]);
    raised->values[index].Append(formats[index], values[index], next[index]);
    raised->positions[index].push_back(positions_[index][kv_head][next[index]++]);
  };
  for (uint32_t t = 0; t < from.size(); ++t) {
    if (from[t] == Tier::kDropped) {
      continue;
    }
    if (from[t] == to[t]) {
      keep(from[t]);
      continue;
    }
    const auto source = static_cast<size_t>(from[t]);
    const auto target = static_cast<size_t>(to[t]);
    const uint32_t row = next[source]++;
    Raise(shape_.head_dim, from[t], to[t], keys[source], row, &*equalization_, kv_head, key_planes,
          raised->keys[target]);
    Raise(shape_.head_dim, from[t], to[t], values[source], row, nullptr, kv_head, value_planes, raised->values[target]);
    raised->positions[target].push_back(static_cast<int32_t>(sinks_.num_tokens() + num_skipped_ + t));
  }
  for (const Tier tier : codec::kStoredTiers) {  // what was generated and encoded since
    while (next[static_cast<size_t>(tier)] < run(tier).num_tokens()) {
      keep(tier);
    }
  }
}

Status LayerCache::AdoptUpgrade(const codec::UpgradeLayout& layout, std::span<const std::byte> block,
                                ThreadPool* pool) {
  if (!precision_.is_progressive() || layout.shape != shape_ || layout.num_tokens > num_encoded() - num_skipped_) {
    return {StatusCode::kMismatch, "an upgrade of another shape, or of a layer without progressive tiers"};
  }
  const codec::TierMap from = EncodedTiers(layout.num_tokens);
  codec::TierMap to = from;
  for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
    const std::span<Tier> ids = std::span(to.ids).subspan(size_t{kv_head} * layout.num_tokens, layout.num_tokens);
    if (!codec::UnpackTierIds(codec::HeadOf(layout, block, kv_head).tier_ids, ids)) {
      return {StatusCode::kCorruption, "bits beyond the last tier id of KV head " + std::to_string(kv_head)};
    }
    const Result<codec::TierMoves> moves = codec::CountMoves(from.OfHead(kv_head), ids);
    if (!moves.ok() || *moves != layout.moves) {
      return {StatusCode::kCorruption,
              "the tiers of KV head " + std::to_string(kv_head) + " are not raised as announced"};
    }
  }
  to.counts = codec::CountTiers(to.OfHead(0));
  std::array<PageRun, codec::kNumStoredTiers> runs = MakeTierRuns(shape_, precision_, account_);
  for (const Tier tier : codec::kStoredTiers) {
    const uint32_t count = run(tier).num_tokens() + to.counts.of(tier) - from.counts.of(tier);
    KVANT_RETURN_IF_ERROR(runs[static_cast<size_t>(tier)].Extend(count));
  }
  ForEachHead(pool, [&](uint32_t kv_head) {
    RaisedHead raised;
    RaiseHead(codec::HeadOf(layout, block, kv_head), from.OfHead(kv_head), to.OfHead(kv_head), kv_head, &raised);
    for (size_t tier = 0; tier < codec::kNumStoredTiers; ++tier) {
      StoreRows(runs[tier], kv_head, 0, runs[tier].num_tokens(), Const(raised.keys[tier].rows()),
                Const(raised.values[tier].rows()));
      positions_[tier][kv_head] = std::move(raised.positions[tier]);
    }
  });
  tiers_ = std::move(runs);
  FreeUnreachable();
  return OkStatus();
}

}  // namespace kvant::cache
