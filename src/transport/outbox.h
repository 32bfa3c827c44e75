#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "kvant/transport/transport.h"
#include "transport/timed_queue.h"

namespace kvant::transport {

/// A message that has its turn. Sequences count from 1 without gaps.
struct Outgoing {
  uint64_t sequence = 0;
  Buffer message;
};

/// How far the peer has come, all counted from the start of the connection.
struct Progress {
  uint64_t through = 0;         ///< every message up to this one is there, or will not be
  uint64_t taken_messages = 0;  ///< handed out, refused or revoked: their room is free again
  uint64_t taken_bytes = 0;
};

/// Messages on their way out, as a function of a clock: they wait for the line, travel, and end.
///
/// Threads  none of its own; the caller locks
class Outbox {
 public:
  /// Messages in flight at once, whatever their size.
  static constexpr uint64_t kMaxMessages = 4096;

  Outbox(double nanoseconds_per_byte, uint64_t max_queued_bytes)
      : line_(nanoseconds_per_byte, UINT64_MAX), max_queued_bytes_(max_queued_bytes) {}

  /// What the peer takes counts too.
  void Limit(uint64_t max_queued_bytes);
  bool HasRoom(uint64_t num_bytes) const;
  OperationId Push(Buffer&& message, Clock::time_point now, Deadline deadline);

  /// Let what is due leave the line, and expire. Everything below describes the state as of the last call.
  void Advance(Clock::time_point now);
  std::optional<Clock::time_point> NextEvent() const;
  bool has_ready() const { return !ready_.empty(); }
  Outgoing TakeReady();
  /// Sequences that left and are not wanted any more.
  std::vector<uint64_t> TakeRevoked() { return std::exchange(revoked_, {}); }

  /// False when the peer claims what cannot be.
  [[nodiscard]] bool Take(const Progress& progress, Clock::time_point now);
  /// End an operation. False when there is none of that name.
  bool Cancel(OperationId id, Clock::time_point now);
  void CutOff(Clock::time_point now);

  bool is_idle() const { return on_line_.empty() && sent_.empty(); }
  bool has_completion() const { return !completions_.empty(); }
  Completion TakeCompletion();
  uint64_t delivered_bytes() const { return delivered_bytes_; }
  uint64_t delivered_messages() const { return delivered_messages_; }

 private:
  struct Operation {
    OperationId id;
    uint64_t num_bytes;
    Clock::time_point posted;
    Deadline deadline;
  };
  using Sent = std::map<uint64_t, Operation>;  // by sequence

  void CollectFromLine();
  void Deliver(Sent::iterator sent, Clock::time_point at);
  Sent::iterator Fail(Sent::iterator sent, StatusCode code, const char* why, Clock::time_point at);

  TimedQueue line_;
  uint64_t max_queued_bytes_;
  std::map<OperationId, Operation> on_line_;
  Sent sent_;  // left the line, and the peer has not said that it is there
  std::deque<Outgoing> ready_;
  std::vector<uint64_t> revoked_;
  std::deque<Completion> completions_;
  uint64_t on_line_bytes_ = 0;
  uint64_t last_sequence_ = 0;
  uint64_t sent_bytes_ = 0;  // of all sequences so far
  Progress peer_;
  uint64_t delivered_bytes_ = 0;
  uint64_t delivered_messages_ = 0;
};

}  // namespace kvant::transport
