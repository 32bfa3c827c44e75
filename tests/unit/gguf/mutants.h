#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/gguf_image.h"

namespace kvant::engine {

/// The byte patcher F8 over a small sound model.
struct Mutant {
  std::string what;
  std::string bytes;
};

/// Fields, section borders and bytes of SmallImage().
struct MutantSource {
  std::vector<test::GgufImage::Field> fields;
  std::vector<size_t> borders;
  std::string bytes;
  size_t header_size = 0;

  static MutantSource Make(const std::string& architecture = "llama");

  /// One of: bytes changed, bits flipped, a field set to an awkward value, bytes cut out or put in twice, two fields
  /// exchanged.
  Mutant Random(uint64_t seed) const;

  /// The field set to `value`, cut to its size.
  std::string WithField(const test::GgufImage::Field& field, uint64_t value) const;
};

inline constexpr uint64_t kAwkwardValues[] = {0, 1, 0x7FFFFFFF, 0xFFFFFFFF, uint64_t{1} << 63, UINT64_MAX};

}  // namespace kvant::engine
