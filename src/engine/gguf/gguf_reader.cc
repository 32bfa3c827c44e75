#include "engine/gguf/gguf_reader.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "engine/gguf/concat.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {
namespace {

constexpr uint64_t kReadStep = uint64_t{256} << 10;

}  // namespace

Status CorruptAt(std::string_view field, std::string_view what, uint64_t offset) {
  std::string message(field);
  message.append(": ").append(what).append(" (byte ").append(std::to_string(offset)).append(")");
  return {StatusCode::kCorruption, message};
}

Result<GgufReader> GgufReader::Open(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return Status(StatusCode::kNotFound, "no such file");
  }
  if (error || status.type() != std::filesystem::file_type::regular) {
    return Status(StatusCode::kIoError, error ? error.message() : "not a regular file");
  }
  GgufReader reader;
  reader.file_size_ = std::filesystem::file_size(path, error);
  if (error) {
    return Status(StatusCode::kIoError, error.message());
  }
  reader.file_.reset(std::fopen(path.c_str(), "rb"));
  if (reader.file_ == nullptr) {
    return Status(StatusCode::kIoError, "cannot be opened for reading");
  }
  std::setvbuf(reader.file_.get(), nullptr, _IONBF, 0);
  reader.capacity_ = std::min(reader.file_size_, kMaxGgufHeaderBytes);
  reader.bytes_.reset(new (std::nothrow) std::byte[std::max<uint64_t>(reader.capacity_, 1)]);
  if (reader.bytes_ == nullptr) {
    return Status(StatusCode::kOutOfMemory, Concat("header buffer of ", reader.capacity_, " bytes"));
  }
  return reader;
}

Status GgufReader::Fill(uint64_t end) {
  if (end <= filled_) {
    return OkStatus();
  }
  const uint64_t target = std::min(capacity_, std::max(end, filled_ + kReadStep));
  filled_ += std::fread(bytes_.get() + filled_, 1, target - filled_, file_.get());
  return filled_ >= end ? OkStatus() : Status(StatusCode::kIoError, "the file could not be read to its end");
}

Result<std::span<const std::byte>> GgufReader::Take(uint64_t size, std::string_view field) {
  if (size > left()) {
    return CorruptAt(field, Concat("needs ", size, " bytes, ", left(), " are left in the file"), offset_);
  }
  if (size > capacity_ - std::min(capacity_, offset_)) {
    return CorruptAt(field, Concat("the header is longer than ", kMaxGgufHeaderBytes, " bytes"), offset_);
  }
  KVANT_RETURN_IF_ERROR(Fill(offset_ + size));
  const std::span<const std::byte> bytes(bytes_.get() + offset_, size);
  offset_ += size;
  return bytes;
}

Result<std::string_view> GgufReader::ReadString(std::string_view field, uint64_t max_length) {
  const uint64_t start = offset_;
  KVANT_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(field));
  if (length > left()) {
    return CorruptAt(field, Concat("length ", length, ", ", left(), " bytes are left"), start);
  }
  if (length > max_length) {
    return CorruptAt(field, Concat("length ", length, " is over the limit of ", max_length), start);
  }
  KVANT_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, Take(length, field));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<uint64_t> GgufReader::ReadCount(std::string_view field, uint64_t min_item_bytes, uint64_t max_count) {
  const uint64_t start = offset_;
  KVANT_ASSIGN_OR_RETURN(const uint64_t count, Read<uint64_t>(field));
  if (count > max_count) {
    return CorruptAt(field, Concat("count ", count, " is over the limit of ", max_count), start);
  }
  if (count > left() / min_item_bytes) {
    return CorruptAt(field, Concat("count ", count, " does not fit in the ", left(), " bytes left"), start);
  }
  return count;
}

}  // namespace kvant::engine
