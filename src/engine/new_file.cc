#include "engine/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace kvant::engine {
namespace {

Status IoError(const std::string& what, const std::string& path) {
  return {StatusCode::kIoError, what + " " + path + ": " + std::strerror(errno)};
}

}  // namespace

Result<NewFile> NewFile::Create(const std::string& path) {
  NewFile file(path);
  file.fd_ = open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  return file.fd_ < 0 ? Result<NewFile>(IoError("cannot write", file.partial_)) : Result<NewFile>(std::move(file));
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)), partial_(std::move(other.partial_)), fd_(std::exchange(other.fd_, -1)) {}

NewFile::~NewFile() {
  if (fd_ >= 0) {
    close(fd_);
    unlink(partial_.c_str());
  }
}

Status NewFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return IoError("cannot write", partial_);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status NewFile::Write(const Result<Buffer>& frame) {
  KVANT_RETURN_IF_ERROR(frame.status());
  return Write(std::as_const(*frame).bytes());
}

Status NewFile::Finish() {
  const bool written = fsync(fd_) == 0;
  const bool closed = close(std::exchange(fd_, -1)) == 0;
  if (!written || !closed || rename(partial_.c_str(), path_.c_str()) != 0) {
    Status status = IoError("cannot write", path_);
    unlink(partial_.c_str());
    return status;
  }
  return OkStatus();
}

}  // namespace kvant::engine
