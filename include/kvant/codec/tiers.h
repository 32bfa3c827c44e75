#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/codec/token_codec.h"

namespace kvant::codec {

/// Precision of one token of one KV head, best first (SpectrumKV section 3). The numbers are those of tier ids in
/// frames.
enum class Tier : uint8_t { kFp16 = 0, kInt8 = 1, kInt4 = 2, kDropped = 3 };
inline constexpr uint32_t kNumTiers = 4;
inline constexpr std::array kTiers = {Tier::kFp16, Tier::kInt8, Tier::kInt4, Tier::kDropped};
inline constexpr std::array kStoredTiers = {Tier::kFp16, Tier::kInt8, Tier::kInt4};
inline constexpr uint32_t kNumStoredTiers = kStoredTiers.size();

/// The codec of a tier: the 4-bit one is affine where keys are equalized, symmetric where they are not (Precision).
constexpr TokenCodec CodecOf(Tier tier, bool equalized) {
  return tier == Tier::kFp16   ? TokenCodec::kFp16
         : tier == Tier::kInt8 ? TokenCodec::kInt8
         : equalized           ? TokenCodec::kInt4Affine
                               : TokenCodec::kInt4;
}
constexpr Tier TierOf(TokenCodec codec) {
  return codec == TokenCodec::kFp16 ? Tier::kFp16 : codec == TokenCodec::kInt8 ? Tier::kInt8 : Tier::kInt4;
}

/// How many tokens go to each tier.
struct TierCounts {
  uint32_t fp16 = 0;
  uint32_t int8 = 0;
  uint32_t int4 = 0;
  uint32_t dropped = 0;

  uint32_t total() const { return fp16 + int8 + int4 + dropped; }
  uint32_t stored() const { return fp16 + int8 + int4; }
  uint32_t of(Tier tier) const {
    return tier == Tier::kFp16 ? fp16 : tier == Tier::kInt8 ? int8 : tier == Tier::kInt4 ? int4 : dropped;
  }
  uint32_t& of(Tier tier) {
    return tier == Tier::kFp16 ? fp16 : tier == Tier::kInt8 ? int8 : tier == Tier::kInt4 ? int4 : dropped;
  }
  /// Tokens of more than one tier: which is which has to be said.
  bool mixed() const { return (fp16 > 0) + (int8 > 0) + (int4 > 0) + (dropped > 0) > 1; }
  friend bool operator==(const TierCounts&, const TierCounts&) = default;
};

TierCounts CountTiers(std::span<const Tier> tiers);

/// The tier of each of a layer's tokens beyond the sinks. Every KV head has the same counts, but its own tokens.
///
/// Shapes  ids [num_kv_heads, counts.total()]
struct TierMap {
  TierCounts counts;
  std::vector<Tier> ids;

  std::span<const Tier> OfHead(uint32_t kv_head) const {
    return std::span(ids).subspan(size_t{kv_head} * counts.total(), counts.total());
  }
};

/// Tier ids as they stand in frames: two bits each, the first in the lowest bits, rounded up to whole pairs of bytes.
size_t TierIdBytes(uint32_t num_tokens);
/// Requires packed.size() == TierIdBytes(ids.size())
void PackTierIds(std::span<const Tier> ids, std::span<std::byte> packed);
/// False where bits beyond the last id are set.
bool UnpackTierIds(std::span<const std::byte> packed, std::span<Tier> ids);

}  // namespace kvant::codec
