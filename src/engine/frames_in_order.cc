#include "engine/frames_in_order.h"

namespace kvant::engine {

Result<FramesInOrder> FramesInOrder::Open(const std::string& path) {
  Result<transfer::FrameFile> file = transfer::FrameFile::Open(path);
  KVANT_RETURN_IF_ERROR(file.status().WithContext(path));
  return FramesInOrder(path, std::move(*file));
}

Result<wire::FrameView> FramesInOrder::Next(wire::FrameType due) {
  ++count_;
  Result<wire::FrameView> frame = Take(due);
  return frame.ok() ? frame
                    : Result<wire::FrameView>(
                          AsDamage(frame.status()).WithContext(path_ + ", frame " + std::to_string(count_)));
}

Status FramesInOrder::End() const {
  return file_.offset() == file_.num_bytes() ? OkStatus()
                                             : Status(StatusCode::kCorruption, path_ + ": bytes after the last frame");
}

Result<wire::FrameView> FramesInOrder::Take(wire::FrameType due) {
  KVANT_ASSIGN_OR_RETURN(bytes_, file_.Next());
  if (!bytes_) {
    return Status(StatusCode::kOutOfRange, "the file ends early");
  }
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView frame, wire::OpenFrame(std::as_const(*bytes_).bytes()));
  if (frame.header.type != due) {
    return Status(StatusCode::kCorruption, std::string("a ")
                                               .append(wire::FrameTypeName(frame.header.type))
                                               .append(" frame where a ")
                                               .append(wire::FrameTypeName(due))
                                               .append(" frame is due"));
  }
  return frame;
}

}  // namespace kvant::engine
