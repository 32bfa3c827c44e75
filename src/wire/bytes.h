#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "kvant/base/check.h"

namespace kvant::wire {

static_assert(std::endian::native == std::endian::little, "frames and blocks are little-endian, and so are we");

/// Puts fields one after the other into bytes that were sized for them.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    PutBytes(std::as_bytes(std::span(&value, 1)));
  }
  void PutBytes(std::span<const std::byte> bytes) {
    KVANT_CHECK(bytes.size() <= rest_.size(), "the buffer was sized for what is written");
    if (!bytes.empty()) {
      std::memcpy(rest_.data(), bytes.data(), bytes.size());
    }
    rest_ = rest_.subspan(bytes.size());
  }

 private:
  std::span<std::byte> rest_;
};

/// Takes fields one after the other from bytes whose number was checked before.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  T Take() {
    static_assert(std::is_arithmetic_v<T>);
    KVANT_CHECK(sizeof(T) <= rest_.size(), "sizes are checked before fields are read");
    T value{};
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace kvant::wire
