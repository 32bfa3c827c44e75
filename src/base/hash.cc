#include "kvant/base/hash.h"

#include <xxhash.h>

#include "kvant/base/check.h"

namespace kvant {

uint64_t Hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hasher64::Hasher64() : state_(XXH3_createState()) {
  KVANT_CHECK(state_ != nullptr, "a hash state is a few hundred bytes");
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

Hasher64::~Hasher64() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Hasher64::Update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

uint64_t Hasher64::Digest() const { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_)); }

}  // namespace kvant
