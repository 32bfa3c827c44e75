#include "kvant/codec/progressive.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "codec/nibbles.h"
#include "kvant/base/check.h"

namespace kvant::codec {
namespace {

constexpr float kBias = 128.0F;
constexpr float kRestSteps = 256.0F;  // of one int8 step

// One plane of every row of codes, `plane_of` says which.
template <typename PlaneOf>
void MakePlane(uint32_t head_dim, const uint8_t* codes, size_t num_tokens, uint8_t* nibbles, const PlaneOf& plane_of) {
  const size_t row_bytes = RowCodeBytes(TokenCodec::kInt4, head_dim);
  std::array<uint8_t, kMaxHeadDim> plane{};
  for (size_t t = 0; t < num_tokens; ++t) {
    std::transform(codes + t * head_dim, codes + (t + 1) * head_dim, plane.begin(), plane_of);
    PackNibbles(std::span(plane).first(head_dim), nibbles + t * row_bytes);
  }
}

template <typename Byte>
UpgradeHead<Byte> CutHead(const UpgradeLayout& layout, std::span<Byte> block, uint32_t kv_head) {
  KVANT_CHECK(block.size() == layout.total_bytes(), "a block is sized by its layout");
  KVANT_CHECK(kv_head < layout.shape.num_kv_heads, "a KV head of the shape");
  std::span<Byte> rest = block.subspan(layout.head_bytes() * kv_head, layout.head_bytes());
  const auto take = [&](size_t count) {
    const std::span<Byte> section = rest.first(count);
    rest = rest.subspan(count);
    return section;
  };
  UpgradeHead<Byte> head;
  head.tier_ids = take(TierIdBytes(layout.num_tokens));
  head.key_middles = take(layout.middle_bytes());
  head.value_middles = take(layout.middle_bytes());
  head.key_rests = take(layout.rest_bytes());
  head.value_rests = take(layout.rest_bytes());
  return head;
}

}  // namespace

RowFormat ProgressiveFormat(Tier tier, uint32_t head_dim) {
  return {tier == Tier::kFp16   ? 2 * RowCodeBytes(TokenCodec::kInt8, head_dim)
          : tier == Tier::kInt8 ? RowCodeBytes(TokenCodec::kInt8, head_dim)
                                : RowCodeBytes(TokenCodec::kInt4, head_dim),
          true, false};
}

void EncodeRest(uint32_t head_dim, const Half* src, size_t num_tokens, ConstTokenRows int8, uint8_t* rest) {
  for (size_t t = 0; t < num_tokens; ++t) {
    const float scale = ToFloat(int8.scales[t]);
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (size_t i = t * head_dim; i < (t + 1) * head_dim; ++i) {
      const float left = ToFloat(src[i]) * inverse - (static_cast<float>(int8.codes[i]) - kBias);
      rest[i] = static_cast<uint8_t>(std::clamp(std::nearbyint(left * kRestSteps), -kBias, kBias - 1) + kBias);
    }
  }
}

void DecodeFine(uint32_t head_dim, const uint8_t* codes, const uint8_t* rest, Half scale, float* dst) {
  const float step = ToFloat(scale);
  for (uint32_t c = 0; c < head_dim; ++c) {
    const float fraction = (static_cast<float>(rest[c]) - kBias) / kRestSteps;
    dst[c] = step * (static_cast<float>(codes[c]) - kBias + fraction);
  }
}

void TopPlane(uint32_t head_dim, const uint8_t* codes, size_t num_tokens, uint8_t* nibbles) {
  MakePlane(head_dim, codes, num_tokens, nibbles, [](uint8_t code) { return static_cast<uint8_t>(code >> 4); });
}

void MiddlePlane(uint32_t head_dim, const uint8_t* codes, size_t num_tokens, uint8_t* nibbles) {
  MakePlane(head_dim, codes, num_tokens, nibbles, [](uint8_t code) { return static_cast<uint8_t>(code & 0xF); });
}

void JoinPlanes(uint32_t head_dim, const uint8_t* top, const uint8_t* middle, size_t num_tokens, uint8_t* codes) {
  const size_t row_bytes = RowCodeBytes(TokenCodec::kInt4, head_dim);
  std::array<uint8_t, kMaxHeadDim> high{};
  std::array<uint8_t, kMaxHeadDim> low{};
  for (size_t t = 0; t < num_tokens; ++t) {
    UnpackNibbles(top + t * row_bytes, std::span(high).first(head_dim));
    UnpackNibbles(middle + t * row_bytes, std::span(low).first(head_dim));
    std::transform(high.begin(), high.begin() + head_dim, low.begin(), codes + t * head_dim,
                   [](uint8_t h, uint8_t l) { return static_cast<uint8_t>(h << 4 | l); });
  }
}

quant::GroupParams CoarseParams(Half scale) {
  const float step = ToFloat(scale);
  return {ToHalf(16.0F * step), ToHalf((7.5F - kBias) * step)};
}

Half FineScale(Half coarse_scale) { return ToHalf(ToFloat(coarse_scale) / 16.0F); }

Result<TierMoves> CountMoves(std::span<const Tier> from, std::span<const Tier> to) {
  KVANT_CHECK(from.size() == to.size(), "the same tokens, before and after");
  TierMoves moves;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == to[i]) {
      continue;
    }
    if (from[i] == Tier::kDropped || to[i] > from[i]) {
      return Status(StatusCode::kInvalidArgument, "token " + std::to_string(i) + " cannot be raised from tier " +
                                                      std::to_string(static_cast<int>(from[i])) + " to tier " +
                                                      std::to_string(static_cast<int>(to[i])));
    }
    ++(from[i] == Tier::kInt8 ? moves.int8_to_fp16 : to[i] == Tier::kInt8 ? moves.int4_to_int8 : moves.int4_to_fp16);
  }
  return moves;
}

size_t UpgradeLayout::middle_bytes() const {
  return moves.middle_rows() * RowCodeBytes(TokenCodec::kInt4, shape.head_dim);
}

UpgradeHead<std::byte> HeadOf(const UpgradeLayout& layout, std::span<std::byte> block, uint32_t kv_head) {
  return CutHead<std::byte>(layout, block, kv_head);
}

UpgradeHead<const std::byte> HeadOf(const UpgradeLayout& layout, std::span<const std::byte> block, uint32_t kv_head) {
  return CutHead<const std::byte>(layout, block, kv_head);
}

}  // namespace kvant::codec
