#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"

namespace kvant::engine {

/// A file that is renamed into place when it is whole, and removed when it is not. Until then it has a name of its own
/// beside the place, so that of several writers the last one wins. It is the owner's alone to read.
///
/// Errors  kIoError with the path, of every call; of Create also where something that is no regular file stands there
class NewFile {
 public:
  static Result<NewFile> Create(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  Status Write(std::span<const std::byte> bytes);
  /// Of a frame that was encoded, or why it was not.
  Status Write(const Result<Buffer>& frame);
  Status Finish();

 private:
  explicit NewFile(const std::string& path) : path_(path), partial_(path + ".XXXXXX") {}

  std::string path_;
  std::string partial_;
  int fd_ = -1;
};

}  // namespace kvant::engine
