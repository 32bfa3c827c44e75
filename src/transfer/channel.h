#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kvant/base/buffer.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/transport.h"
#include "kvant/wire/messages.h"

namespace kvant::transfer {

/// A frame that arrived, and the bytes it lies in.
struct ReceivedFrame {
  Buffer bytes;
  wire::FrameView view;
};

/// The largest frame that says no more than how a session goes on or why it ends.
inline constexpr uint64_t kMaxVerdictFrameBytes = wire::kHeaderBytes + wire::kVerdictBytes + wire::kMaxTextBytes;

/// kCorruption: "a … frame where <due>".
Status Unexpected(wire::FrameType type, const std::string& due);

/// Frames of one session over an endpoint: counted, bounded, interruptible. Errors the peer reports become ours.
///
/// Threads  one, but RequestCancel from any
class Channel {
 public:
  Channel(transport::Endpoint* endpoint, std::chrono::milliseconds timeout, uint64_t max_in_flight_bytes)
      : endpoint_(endpoint), timeout_(timeout), max_in_flight_bytes_(max_in_flight_bytes) {}

  void set_session(uint64_t session) { session_ = session; }
  uint64_t session() const { return session_.value_or(0); }
  TransferReport& report() { return report_; }
  const TransferReport& report() const { return report_; }

  /// Wait until another `num_bytes` may be in flight.
  Status WaitForRoom(uint64_t num_bytes);
  /// Post a frame; it counts as sent when it is delivered.
  Status Send(wire::FrameType type, Result<Buffer> frame);
  /// Count what has been delivered by now.
  Status Collect();
  /// Wait until all that was posted is delivered.
  Status Drain();
  /// What is known of the line now; waits for the first layer to be delivered, before which nothing is.
  Result<LineState> MeasureLine();

  /// The next frame, opened, of this session and of the type that is due.
  /// Errors  what the peer reports; kCancelled; kTimeout; kTransportClosed; those of OpenFrame; kCorruption
  Result<ReceivedFrame> Receive(wire::FrameType due, uint64_t max_bytes, std::chrono::milliseconds timeout);
  /// The same for a frame of any type; `due` is what an error says was waited for.
  Result<ReceivedFrame> ReceiveAny(const std::string& due, uint64_t max_bytes, std::chrono::milliseconds timeout);
  /// The next frame if it is here, at once. Errors  as ReceiveAny
  Result<std::optional<ReceivedFrame>> Poll(uint64_t max_bytes);
  /// An error when the peer has reported one, or has sent anything else while nothing is due.
  Status CheckPeer();

  /// End the session because of `why`: take back what is in flight, tell the peer unless it told us, close.
  /// Returns the reason; where ours is only that the connection is closed, the one the peer gave before.
  Status Fail(Status why);
  /// The same without telling: the peer knows already.
  Status Close(Status why);

  /// The peer ended the session itself, by other means than an error frame.
  void PeerKnows() { peer_knows_ = true; }

  void RequestCancel() { cancel_requested_.store(true, std::memory_order_relaxed); }

 private:
  struct Posted {
    wire::FrameType type;
    uint64_t num_bytes;
    transport::Clock::time_point when = transport::Clock::now();
  };

  template <typename Call>
  auto Interruptible(transport::Deadline deadline, Call&& call) -> decltype(call(deadline));
  Status CheckCancelled() const;
  Status CollectOne(transport::Deadline deadline);
  Status Take(const transport::Completion& completion);
  Result<ReceivedFrame> Open(Buffer bytes);
  Status PeerError(const wire::FrameView& frame);
  void TakeBack();
  void TellPeer(const Status& why);
  Status ReasonOfPeer(Status why);

  transport::Endpoint* endpoint_;
  const std::chrono::milliseconds timeout_;
  const uint64_t max_in_flight_bytes_;
  std::optional<uint64_t> session_;
  TransferReport report_;
  std::map<transport::OperationId, Posted> in_flight_;
  uint64_t in_flight_bytes_ = 0;
  bool peer_knows_ = false;
  std::atomic<bool> cancel_requested_{false};
};

}  // namespace kvant::transfer
