#include "cli/frame_saver.h"

namespace kvant::cli {
namespace {

Status CannotWrite(const std::string& path) {
  return {StatusCode::kIoError, "--save-frames " + path + ": cannot be written"};
}

}  // namespace

Result<FrameSaver> FrameSaver::Create(const std::string& path) {
  FrameSaver saver;
  if (!path.empty()) {
    saver.path_ = path;
    saver.file_ = std::make_unique<std::ofstream>(path, std::ios::binary | std::ios::trunc);
    if (!*saver.file_) {
      return CannotWrite(path);
    }
  }
  return saver;
}

transport::Tap FrameSaver::tap() {
  if (!saves()) {
    return {};
  }
  return [this](std::span<const std::byte> message) {
    file_->write(reinterpret_cast<const char*>(message.data()), static_cast<std::streamsize>(message.size()));
    return *file_ ? OkStatus() : CannotWrite(path_);
  };
}

Status FrameSaver::Close() {
  if (!saves()) {
    return OkStatus();
  }
  file_->close();
  return *file_ ? OkStatus() : CannotWrite(path_);
}

}  // namespace kvant::cli
