#include "kvant/transfer/frame_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "kvant/wire/frame.h"

namespace kvant::transfer {

Result<FrameFile> FrameFile::Open(const std::string& path, uint64_t max_frame_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return Status(StatusCode::kNotFound, "there is no such file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    return Status(StatusCode::kIoError, error ? error.message() : "it is not a regular file");
  }
  const uint64_t num_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    return Status(StatusCode::kIoError, error ? error.message() : std::strerror(errno));
  }
  if (num_bytes == 0) {
    return Status(StatusCode::kOutOfRange, "the file is empty");
  }
  return FrameFile(std::move(file), num_bytes, max_frame_bytes);
}

Result<std::optional<Buffer>> FrameFile::Next() {
  const uint64_t rest = num_bytes_ - offset_;
  if (rest == 0 || lost_) {
    return std::optional<Buffer>();
  }
  KVANT_ASSIGN_OR_RETURN(Buffer header, Read(std::min<uint64_t>(rest, wire::kHeaderBytes)));
  const std::optional<uint64_t> announced =
      header.size() < wire::kHeaderBytes ? std::nullopt : wire::AnnouncedBytes(header.bytes());
  lost_ = !announced;
  const uint64_t frame_bytes = announced ? std::min(rest, *announced) : header.size();
  if (frame_bytes > max_frame_bytes_) {
    offset_ += frame_bytes;
    return Status(StatusCode::kCapacityExceeded, "a frame of " + std::to_string(frame_bytes) +
                                                     " bytes; those of up to " + std::to_string(max_frame_bytes_) +
                                                     " are read");
  }
  KVANT_ASSIGN_OR_RETURN(Buffer frame, Read(frame_bytes));
  offset_ += frame_bytes;
  return std::optional(std::move(frame));
}

Result<Buffer> FrameFile::Read(uint64_t num_bytes) {
  file_.seekg(static_cast<std::streamoff>(offset_));
  KVANT_ASSIGN_OR_RETURN(Buffer bytes, Buffer::Allocate(num_bytes));
  if (!file_.read(reinterpret_cast<char*>(bytes.bytes().data()), static_cast<std::streamsize>(num_bytes))) {
    lost_ = true;
    return Status(StatusCode::kIoError,
                  "cannot read " + std::to_string(num_bytes) + " bytes at " + std::to_string(offset_));
  }
  return bytes;
}

}  // namespace kvant::transfer
