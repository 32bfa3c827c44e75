#include "cli/inspect/frame_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cli/format.h"
#include "kvant/wire/frame.h"

namespace kvant::cli {

Result<FrameFile> FrameFile::Open(const std::string& path, uint64_t max_frame_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return Status(StatusCode::kNotFound, "there is no such file");
  }
  const uint64_t num_bytes = std::filesystem::is_regular_file(status) ? std::filesystem::file_size(path, error) : 0;
  std::ifstream file(path, std::ios::binary);
  if (!std::filesystem::is_regular_file(status) || error || !file) {
    return Status(StatusCode::kIoError, "it cannot be read as a file");
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
    return Status(StatusCode::kCapacityExceeded,
                  fmt::format("a frame of {}; inspected are those of up to {} (--max-frame-mb)",
                              FormatBytes(frame_bytes), FormatBytes(max_frame_bytes_)));
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
    return Status(StatusCode::kIoError, fmt::format("cannot read {} bytes at {}", num_bytes, offset_));
  }
  return bytes;
}

}  // namespace kvant::cli
