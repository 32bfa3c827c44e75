#pragma once

#include <cstdint>
#include <optional>

namespace kvant {

/// Arithmetic on sizes that came from outside: nothing, instead of a wrapped value.
inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::nullopt : std::optional(sum);
}

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::nullopt : std::optional(product);
}

constexpr uint64_t CeilDiv(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }
constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) { return CeilDiv(value, multiple) * multiple; }

}  // namespace kvant
