#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "kvant/transport/transport.h"

namespace kvant::transport {

/// One direction of a loopback: messages that take their time, as a function of a clock that the caller reads.
///
/// Threads  none of its own; the caller locks
class TimedQueue {
 public:
  /// `nanoseconds_per_byte` is 0 for a line without limit.
  TimedQueue(double nanoseconds_per_byte, uint64_t max_queued_bytes)
      : nanoseconds_per_byte_(nanoseconds_per_byte), max_queued_bytes_(max_queued_bytes) {}

  bool HasRoom(uint64_t num_bytes) const {
    return queued_bytes_ == 0 || (queued_bytes_ <= max_queued_bytes_ && num_bytes <= max_queued_bytes_ - queued_bytes_);
  }
  OperationId Push(Buffer&& message, Clock::time_point now, Deadline deadline);

  /// Deliver and expire what is due by `now`. Everything below describes the state as of the last call.
  void Advance(Clock::time_point now);
  /// When Advance will next have something to do.
  std::optional<Clock::time_point> NextEvent() const;

  /// End an operation in flight. False when there is none of that name.
  bool Cancel(OperationId id, Clock::time_point now);
  /// End all operations in flight with kTransportClosed.
  void CutOff(Clock::time_point now);
  /// Forget what has arrived: nobody will take it.
  void DropArrived();

  bool has_arrived() const { return !arrived_.empty(); }
  uint64_t next_arrived_bytes() const { return arrived_.front().size(); }
  Buffer TakeArrived();

  bool has_completion() const { return !completions_.empty(); }
  bool is_idle() const { return in_flight_.empty() && completions_.empty(); }
  Completion TakeCompletion();

  uint64_t delivered_bytes() const { return delivered_bytes_; }
  uint64_t delivered_messages() const { return delivered_messages_; }

 private:
  struct InFlight {
    OperationId id;
    Buffer message;
    Clock::time_point posted;
    Deadline deadline;
  };

  Clock::time_point StartOf(const InFlight& front) const { return std::max(line_free_, front.posted); }
  Clock::time_point FinishOf(const InFlight& front) const;
  void Deliver(Clock::time_point at);
  void Fail(size_t index, StatusCode code, const char* why, Clock::time_point at);

  const double nanoseconds_per_byte_;
  const uint64_t max_queued_bytes_;
  std::deque<InFlight> in_flight_;
  std::deque<Buffer> arrived_;
  std::deque<Completion> completions_;
  Clock::time_point line_free_ = Clock::time_point::min();
  uint64_t queued_bytes_ = 0;  // in flight or arrived
  uint64_t delivered_bytes_ = 0;
  uint64_t delivered_messages_ = 0;
  OperationId last_id_ = 0;
};

}  // namespace kvant::transport
