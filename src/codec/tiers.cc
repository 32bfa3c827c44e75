#include "kvant/codec/tiers.h"

#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/base/checked.h"

namespace kvant::codec {
namespace {

constexpr uint32_t kIdsPerByte = 4;
constexpr uint32_t kIdBits = 2;

}  // namespace

TierCounts CountTiers(std::span<const Tier> tiers) {
  TierCounts counts;
  for (const Tier tier : tiers) {
    ++counts.of(tier);
  }
  return counts;
}

size_t TierIdBytes(uint32_t num_tokens) { return RoundUp(CeilDiv(num_tokens, kIdsPerByte), 2); }

void PackTierIds(std::span<const Tier> ids, std::span<std::byte> packed) {
  KVANT_CHECK(packed.size() == TierIdBytes(static_cast<uint32_t>(ids.size())), "packed ids are sized by their count");
  std::fill(packed.begin(), packed.end(), std::byte{0});
  for (size_t i = 0; i < ids.size(); ++i) {
    packed[i / kIdsPerByte] |= static_cast<std::byte>(static_cast<uint32_t>(ids[i]) << (i % kIdsPerByte * kIdBits));
  }
}

bool UnpackTierIds(std::span<const std::byte> packed, std::span<Tier> ids) {
  KVANT_CHECK(packed.size() == TierIdBytes(static_cast<uint32_t>(ids.size())), "packed ids are sized by their count");
  const auto id_at = [&](size_t i) {
    return std::to_integer<uint32_t>(packed[i / kIdsPerByte]) >> (i % kIdsPerByte * kIdBits) & (kNumTiers - 1);
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<Tier>(id_at(i));
  }
  for (size_t i = ids.size(); i < packed.size() * kIdsPerByte; ++i) {
    if (id_at(i) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace kvant::codec
