#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvant/base/status.h"

namespace kvant::engine {

/// "field: what (byte N)" with kCorruption.
Status CorruptAt(std::string_view field, std::string_view what, uint64_t offset);

/// Walks a file's head from front to back. What has been read stays in one buffer that never moves, so the views it
/// hands out live as long as the reader.
class GgufReader {
 public:
  static Result<GgufReader> Open(const std::string& path);

  uint64_t offset() const { return offset_; }
  uint64_t file_size() const { return file_size_; }
  uint64_t left() const { return file_size_ - offset_; }

  /// A little-endian number.
  template <typename T>
  Result<T> Read(std::string_view field) {
    KVANT_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, Take(sizeof(T), field));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  /// The next `size` bytes, which must lie in the file and in the header limit.
  Result<std::span<const std::byte>> Take(uint64_t size, std::string_view field);

  /// A 64-bit length and that many bytes; longer than `max_length` is an error.
  Result<std::string_view> ReadString(std::string_view field, uint64_t max_length);

  /// A count of items of at least `min_item_bytes` each: refused when the file cannot hold them.
  Result<uint64_t> ReadCount(std::string_view field, uint64_t min_item_bytes, uint64_t max_count);

  /// Bytes [0, end) again; end must not be beyond offset().
  std::span<const std::byte> Seen(uint64_t end) const { return {bytes_.get(), end}; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  GgufReader() = default;
  Status Fill(uint64_t end);

  std::unique_ptr<std::FILE, CloseFile> file_;
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t capacity_ = 0;  // min(file_size_, kMaxGgufHeaderBytes)
  uint64_t filled_ = 0;
  uint64_t offset_ = 0;
  uint64_t file_size_ = 0;
};

}  // namespace kvant::engine
