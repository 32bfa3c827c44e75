#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "kvant/base/status.h"

namespace kvant {

/// Owned bytes, 64-byte aligned: a message on its way. Moves, never copies.
///
/// Threads  a value type
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  Buffer(Buffer&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  /// Ensures  contents unspecified until written
  /// Errors   kOutOfMemory with the size asked for
  static Result<Buffer> Allocate(size_t num_bytes) {
    void* memory = ::operator new (num_bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) {
      return Status(StatusCode::kOutOfMemory, "no memory for a buffer of " + std::to_string(num_bytes) + " bytes");
    }
    return Buffer(static_cast<std::byte*>(memory), num_bytes);
  }

  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {memory_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{kAlignment}); }
  };
  Buffer(std::byte* memory, size_t num_bytes) : memory_(memory), size_(num_bytes) {}

  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace kvant
