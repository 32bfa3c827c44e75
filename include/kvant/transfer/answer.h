#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "kvant/base/status.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/transport.h"
#include "kvant/wire/answer.h"
#include "kvant/wire/upgrade.h"

namespace kvant::transfer {

/// The prefill side once its Sender has finished: asks for the answer and takes it as it comes.
///
/// The first error ends the session: the peer is told, the endpoint is closed. Dropping it before the end cancels.
///
/// Threads  one, but Cancel from any
class AnswerTaker {
 public:
  using Event = std::variant<wire::AnswerText, wire::AnswerEnd, wire::UpgradeRequest>;

  /// `endpoint` outlives it and is used by nobody else meanwhile; `session` is the sender's.
  AnswerTaker(transport::Endpoint* endpoint, uint64_t session, const Timeouts& timeouts);
  ~AnswerTaker();
  AnswerTaker(const AnswerTaker&) = delete;
  AnswerTaker& operator=(const AnswerTaker&) = delete;

  /// Tell the peer that it may ask for upgrades of a prompt of `shape`; before Ask, or not at all.
  Status Offer(const wire::UpgradeOffer& offer, const codec::CacheShape& shape);
  Status Ask(const wire::AnswerRequest& request);
  /// Answer a request: post the frame, which leaves while the answer goes on.
  Status SendUpgrade(Buffer frame);
  /// The next text, or a request for an upgrade where they were offered, or the end, after which nothing comes.
  /// Errors  the peer's; kCorruption: a damaged frame, or texts whose tokens go back; kTimeout, kTransportClosed,
  ///         kCancelled
  Result<Event> Next();

  /// End the session within 20 ms, with kCancelled.
  void Cancel();

  const TransferReport& report() const;

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

/// An upgrade that was asked for, and the bytes it lies in.
struct ReceivedUpgrade {
  Buffer bytes;
  wire::UpgradeView view;
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
  /// What came before the request: nothing where no upgrades are offered.
  const std::optional<wire::UpgradeOffer>& offer() const;
  /// Ask for the missing planes of a layer's tokens. Requires an offer, no request of that layer open
  Status RequestUpgrade(const wire::UpgradeRequest& request);
  /// The next upgrade that CheckPeer found, verified against its request.
  std::optional<ReceivedUpgrade> TakeUpgrade();
  Status SendText(const wire::AnswerText& text);
  /// Ensures  the peer has everything
  Status Finish(const wire::AnswerEnd& end);

  /// Whether the peer still wants the answer, and what has come from it; at once.
  /// Errors  the peer's, kCancelled, kTransportClosed; kCorruption: a frame that was not asked for
  Status CheckPeer();
  /// End the session because of an error of the caller's own. Returns the reason: the peer's, where it had one before.
  Status Abort(const Status& why);

  void Cancel();

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

}  // namespace kvant::transfer
