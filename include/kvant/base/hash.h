#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvant {

/// XXH3 with 64 bits, seed 0: the checksum of frames and the fingerprint of models. Not cryptographic.
uint64_t Hash64(std::span<const std::byte> bytes);

/// The same over pieces: Update in order, then Digest.
class Hasher64 {
 public:
  Hasher64();
  ~Hasher64();
  Hasher64(const Hasher64&) = delete;
  Hasher64& operator=(const Hasher64&) = delete;

  void Update(std::span<const std::byte> bytes);
  uint64_t Digest() const;

 private:
  void* state_;
};

}  // namespace kvant
