#include "engine/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace kvant::engine {
namespace {

Status IoError(const std::string& what, const std::string& path) {
  return {StatusCode::kIoError, what + " " + path + ": " + std::strerror(errno)};
}

// Where a link leads, so that it stays a link.
Result<std::string> PlaceOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    return lstat(path.c_str(), &found) == 0
               ? Status(StatusCode::kIoError, "cannot write " + path + ": a link that leads nowhere")
               : Result<std::string>(path);
  }
  if (!S_ISREG(found.st_mode)) {
    return Status(StatusCode::kIoError, "cannot write " + path + ": not a regular file");
  }
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? Result<std::string>(IoError("cannot write", path)) : Result<std::string>(real.get());
}

}  // namespace

Result<NewFile> NewFile::Create(const std::string& path) {
  KVANT_ASSIGN_OR_RETURN(const std::string place, PlaceOf(path));
  NewFile file(place);
  file.fd_ = mkostemp(file.partial_.data(), O_CLOEXEC);
  return file.fd_ < 0 ? Result<NewFile>(IoError("cannot write", path)) : Result<NewFile>(std::move(file));
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
