#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "kvant/base/status.h"
#include "kvant/transport/tap.h"

namespace kvant::cli {

/// A file that takes frames as they are sent, one after another.
///
/// Threads  Tap's calls come one at a time; the saver outlives them
class FrameSaver {
 public:
  /// An empty path saves nothing.
  /// Errors  kIoError: the file cannot be made
  static Result<FrameSaver> Create(const std::string& path);

  bool saves() const { return file_ != nullptr; }
  /// Empty where nothing is saved. A file that cannot be written ends the transfer with kIoError.
  transport::Tap tap();
  /// After the last frame.
  Status Close();

 private:
  std::string path_;
  std::unique_ptr<std::ofstream> file_;
};

}  // namespace kvant::cli
