#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvant/transport/transport.h"
#include "transport/outbox.h"

namespace kvant::transport {

/// Messages on their way in: announced by the peer, fetched when they are expected, handed out in order.
///
/// Threads  none of its own; the caller locks
class Inbox {
 public:
  /// What the carrier names an announced message by. It gets every handle back once, to fetch or to let go.
  using Handle = void*;
  struct Fetch {
    uint64_t sequence = 0;
    uint64_t num_bytes = 0;
    Handle handle = nullptr;
  };

  explicit Inbox(uint64_t max_queued_bytes) : max_queued_bytes_(max_queued_bytes) {}

  /// A message that waits at the peer. False when the peer may not send it; the handle is then still the carrier's.
  [[nodiscard]] bool Announce(uint64_t sequence, uint64_t num_bytes, Handle handle);
  /// A message that is here already.
  [[nodiscard]] bool Arrive(uint64_t sequence, Buffer&& message);
  /// The end of a fetch.
  void Finish(uint64_t sequence, Result<Buffer> message);
  /// The peer takes a message back. Its word comes after the message.
  void Revoke(uint64_t sequence);
  /// Nothing more will come: what has not arrived is let go, and whatever comes after it.
  void CutOff();
  void DropArrived();

  /// The next message to fetch; none that is larger than what was last asked for.
  std::optional<Fetch> NextFetch();
  std::vector<Handle> TakeReleased() { return std::exchange(released_, {}); }
  /// What the peer has to be told, if it has changed.
  std::optional<Progress> TakeProgress();

  /// The next message in order, if it is there; from now on messages up to `max_bytes` are fetched.
  /// Errors  kCapacityExceeded: it has more; kOutOfMemory: it could not be fetched. It is dropped then
  std::optional<Result<Buffer>> Take(uint64_t max_bytes);

  uint64_t received_bytes() const { return received_bytes_; }
  uint64_t received_messages() const { return received_messages_; }

 private:
  enum class State : uint8_t { kAnnounced, kFetching, kArrived, kRefused, kGone };
  struct Entry {
    State state{};
    uint64_t num_bytes = 0;
    Handle handle = nullptr;
    Buffer message;
    Status refusal;
  };

  bool Admits(uint64_t sequence, uint64_t num_bytes) const;
  void Insert(uint64_t sequence, Entry&& entry);
  void LetGo(Entry& entry);
  void Settle();

  const uint64_t max_queued_bytes_;
  std::map<uint64_t, Entry> entries_;
  uint64_t next_ = 1;  // to hand out
  uint64_t waiting_bytes_ = 0;
  uint64_t expected_bytes_ = 0;
  std::vector<Handle> released_;
  Progress progress_;
  Progress told_;
  uint64_t received_bytes_ = 0;
  uint64_t received_messages_ = 0;
};

}  // namespace kvant::transport
