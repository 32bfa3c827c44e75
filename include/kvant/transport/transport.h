#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"

namespace kvant::transport {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

inline Deadline After(Clock::duration duration) { return Clock::now() + duration; }

using OperationId = uint64_t;

/// How a posted message ended.
struct Completion {
  OperationId id = 0;
  /// kOk: the peer has it. kTimeout, kCancelled, kTransportClosed: it never will; over a network, unless it had
  /// received the message already and the word of that did not come back in time.
  Status status;
  uint64_t num_bytes = 0;  ///< delivered; 0 unless ok
  Clock::time_point posted{};
  Clock::time_point finished{};
};

/// What was moved, as the transport itself counted it: whole messages, delivered (sent) and handed out (received).
struct Counters {
  uint64_t sent_bytes = 0;
  uint64_t sent_messages = 0;
  uint64_t received_bytes = 0;
  uint64_t received_messages = 0;
};

/// One end of a connection. Messages arrive whole, once, in the order posted; what they mean is not known here.
///
/// The contract follows what UCP and NIXL offer, so that they fit behind it: Post is an active message with
/// rendezvous (ucp_am_send_nbx) or a posted transfer, OperationId its request, Wait and Cancel those of the request,
/// Receive the arrival of an active message into memory of the transport's choice, Close a forced ucp_ep_close_nbx.
///
/// Threads  any number at once; destruction only when no call is in progress
class Endpoint {
 public:
  virtual ~Endpoint() = default;  ///< closes

  /// Wait until a message of `num_bytes` can be posted: back-pressure. A message larger than all room passes alone.
  /// Errors  kTimeout; kTransportClosed
  virtual Status WaitForRoom(uint64_t num_bytes, Deadline deadline) = 0;

  /// Give a message away to be delivered by `deadline`. Returns at once.
  ///
  /// Requires message.size() > 0
  /// Ensures  on success exactly one Completion will come; on error the message is still the caller's, untouched
  /// Errors   kCapacityExceeded: no room for it now; kTransportClosed
  virtual Result<OperationId> Post(Buffer&& message, Deadline deadline) = 0;

  /// The next completion, in the order in which operations end.
  /// Errors  kTimeout; kNotFound: nothing is in flight; kTransportClosed: closed, and nothing is left to report
  virtual Result<Completion> Wait(Deadline deadline) = 0;

  /// A completion if there is one now.
  std::optional<Completion> Poll() {
    Result<Completion> completion = Wait(Deadline::min());
    return completion.ok() ? std::optional(std::move(completion).value()) : std::nullopt;
  }

  /// The next message.
  /// Errors  kTimeout; kTransportClosed: and nothing more will come; kCapacityExceeded: the message had more than
  ///         `max_bytes` and was dropped, its size is in the text
  virtual Result<Buffer> Receive(uint64_t max_bytes, Deadline deadline) = 0;

  /// Stop an operation that has not ended. Its completion says kCancelled.
  /// Errors  kNotFound: unknown, or already ended
  virtual Status Cancel(OperationId id) = 0;

  /// End the connection for both sides and wake whoever waits. What is in flight fails; messages that have arrived at
  /// the peer can still be received there. May be called twice.
  virtual void Close() = 0;

  virtual Counters counters() const = 0;
};

}  // namespace kvant::transport
