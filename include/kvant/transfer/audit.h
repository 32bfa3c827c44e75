#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/wire/frame.h"
#include "kvant/wire/messages.h"

namespace kvant::transfer {

/// What a receiver would find in saved frames: every fault, where it stops at the first.
///
/// Frames that begin with a hello are one session, and their order counts (docs/format/wire.md, "Session"); any others,
/// a hello alone among them, are taken each for itself. Frames of both directions may stand in one file.
class SessionAudit {
 public:
  /// Of the frame's fields and content, and of its place after those before it.
  std::vector<Status> Take(const wire::FrameView& frame);
  /// Of an end after the last one.
  std::vector<Status> End() const;

 private:
  void TakeHello(const wire::FrameView& frame, std::vector<Status>* faults);
  void TakeLayer(const wire::FrameView& frame, std::vector<Status>* faults);
  void TakeFinish(const wire::FrameView& frame, std::vector<Status>* faults);

  uint64_t num_frames_ = 0;
  uint64_t session_ = 0;
  std::optional<wire::Hello> hello_;  ///< of the session
  uint32_t next_layer_ = 0;
  bool finished_ = false;
};

}  // namespace kvant::transfer
