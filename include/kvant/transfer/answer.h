#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "kvant/base/status.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/transport.h"
#include "kvant/wire/answer.h"

namespace kvant::transfer {

/// The prefill side once its Sender has finished: asks for the answer and takes it as it comes.
///
/// The first error ends the session: the peer is told, the endpoint is closed. Dropping it before the end cancels.
///
/// Threads  one, but Cancel from any
class AnswerTaker {
 public:
  using Event = std::variant<wire::AnswerText, wire::AnswerEnd>;

  /// `endpoint` outlives it and is used by nobody else meanwhile; `session` is the sender's.
  AnswerTaker(transport::Endpoint* endpoint, uint64_t session, const Timeouts& timeouts);
  ~AnswerTaker();
  AnswerTaker(const AnswerTaker&) = delete;
  AnswerTaker& operator=(const AnswerTaker&) = delete;

  Status Ask(const wire::AnswerRequest& request);
  /// The next text, or the end, after which nothing comes.
  /// Errors  the peer's; kCorruption: a damaged frame, or texts whose tokens go back; kTimeout, kTransportClosed,
  ///         kCancelled
  Result<Event> Next();

  /// End the session within 20 ms, with kCancelled.
  void Cancel();

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

/// The decode side once its Receiver has run.
///
/// Errors end the session as above. Dropping it before Finish tells the peer so.
///
/// Threads  one, but Cancel from any
class AnswerGiver {
 public:
  AnswerGiver(transport::Endpoint* endpoint, const Timeouts& timeouts);
  ~AnswerGiver();
  AnswerGiver(const AnswerGiver&) = delete;
  AnswerGiver& operator=(const AnswerGiver&) = delete;

  Result<wire::AnswerRequest> TakeRequest();
  Status SendText(const wire::AnswerText& text);
  /// Ensures  the peer has everything
  Status Finish(const wire::AnswerEnd& end);

  /// Whether the peer still wants the answer; at once.
  /// Errors  the peer's, kCancelled, kTransportClosed
  Status CheckPeer();
  /// End the session because of an error of the caller's own. Returns the reason: the peer's, where it had one before.
  Status Abort(const Status& why);

  void Cancel();

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

}  // namespace kvant::transfer
