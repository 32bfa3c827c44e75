#include "kvant/transfer/answer.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "kvant/base/check.h"
#include "transfer/channel.h"

namespace kvant::transfer {
namespace {

// Of frames that wait for the line: texts here, upgrades there.
constexpr uint64_t kMaxTextBytesInFlight = uint64_t{1} << 20;
constexpr uint64_t kMaxUpgradeBytesInFlight = uint64_t{256} << 20;
constexpr uint64_t kMaxRequestFrameBytes = wire::kHeaderBytes + wire::kAnswerRequestBytes + wire::kMaxGrammarBytes;
constexpr uint64_t kMaxTextFrameBytes = wire::kHeaderBytes + wire::kAnswerTextBytes + wire::kMaxAnswerTextBytes;
constexpr uint64_t kMaxEventFrameBytes = std::max(kMaxTextFrameBytes, kMaxVerdictFrameBytes);

// One side of an answer: its channel, and whether it has ended.
struct Conversation {
  Conversation(transport::Endpoint* endpoint, const Timeouts& chosen, uint64_t max_in_flight_bytes)
      : timeouts(chosen), channel(endpoint, chosen.message, max_in_flight_bytes) {}

  // An error ends the session.
  Status End(Status why) {
    if (!has_ended) {
      has_ended = true;
      failure = channel.Fail(std::move(why));
    }
    return failure;
  }
  Status Checked(Status status) { return status.ok() ? status : End(std::move(status)); }
  template <typename T>
  Result<T> Checked(Result<T> result) {
    return result.ok() ? std::move(result) : Result<T>(End(result.status()));
  }

  const Timeouts timeouts;
  Channel channel;
  bool has_ended = false;
  Status failure{StatusCode::kInvalidArgument, "the answer has ended"};
};

}  // namespace

struct AnswerTaker::Session : Conversation {
  using Conversation::Conversation;

  Result<Event> Take() {
    KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                           channel.ReceiveAny("the answer", max_event_bytes, timeouts.message));
    uint32_t now = 0;
    Event event;
    if (frame.view.header.type == wire::FrameType::kAnswerText) {
      KVANT_ASSIGN_OR_RETURN(wire::AnswerText text, wire::DecodeAnswerText(frame.view));
      now = text.tokens;
      event = std::move(text);
    } else if (frame.view.header.type == wire::FrameType::kAnswerEnd) {
      KVANT_ASSIGN_OR_RETURN(const wire::AnswerEnd end, wire::DecodeAnswerEnd(frame.view));
      now = end.tokens;
      event = end;
    } else if (offers && frame.view.header.type == wire::FrameType::kUpgradeRequest) {
      KVANT_ASSIGN_OR_RETURN(wire::UpgradeRequest request, wire::DecodeUpgradeRequest(frame.view));
      return Event(std::move(request));
    } else {
      return Unexpected(frame.view.header.type, "the answer is due");
    }
    if (now < tokens || now > max_tokens) {
      return Status(StatusCode::kCorruption, "an answer of " + std::to_string(now) + " tokens after " +
                                                 std::to_string(tokens) + ", of at most " + std::to_string(max_tokens));
    }
    tokens = now;
    return event;
  }

  uint32_t tokens = 0;
  uint32_t max_tokens = 0;
  bool offers = false;
  uint64_t max_event_bytes = kMaxEventFrameBytes;
};

AnswerTaker::AnswerTaker(transport::Endpoint* endpoint, uint64_t session, const Timeouts& timeouts)
    : session_(std::make_unique<Session>(endpoint, timeouts, kMaxUpgradeBytesInFlight)) {
  session_->channel.set_session(session);
}

AnswerTaker::~AnswerTaker() {
  static_cast<void>(session_->End({StatusCode::kCancelled, "the answer was dropped before its end"}));
}

Status AnswerTaker::Offer(const wire::UpgradeOffer& offer, const codec::CacheShape& shape) {
  session_->offers = true;
  for (const codec::TierCounts& counts : offer.layers) {
    const uint64_t bytes = wire::kBlockOffset + uint64_t{shape.num_kv_heads} * codec::TierIdBytes(counts.total());
    session_->max_event_bytes = std::max(session_->max_event_bytes, bytes);
  }
  Channel& channel = session_->channel;
  return session_->Checked(
      channel.Send(wire::FrameType::kUpgradeOffer, wire::EncodeUpgradeOffer(channel.session(), offer)));
}

Status AnswerTaker::SendUpgrade(Buffer frame) {
  const Status sent = session_->channel.Send(wire::FrameType::kUpgrade, std::move(frame));
  // The peer may have ended the answer meanwhile: whether it has, Next says.
  return sent.code() == StatusCode::kTransportClosed ? OkStatus() : session_->Checked(sent);
}

const TransferReport& AnswerTaker::report() const { return session_->channel.report(); }

Status AnswerTaker::Ask(const wire::AnswerRequest& request) {
  session_->max_tokens = request.max_tokens;
  Channel& channel = session_->channel;
  return session_->Checked(
      channel.Send(wire::FrameType::kAnswerRequest, wire::EncodeAnswerRequest(channel.session(), request)));
}

Result<AnswerTaker::Event> AnswerTaker::Next() {
  if (session_->has_ended) {
    return session_->failure;
  }
  Result<Event> event = session_->Checked(session_->Take());
  session_->has_ended = session_->has_ended || std::holds_alternative<wire::AnswerEnd>(*event);
  static_cast<void>(session_->channel.Collect());  // what was not delivered is not needed any more
  return event;
}

void AnswerTaker::Cancel() { session_->channel.RequestCancel(); }

struct AnswerGiver::Session : Conversation {
  using Conversation::Conversation;

  Result<wire::AnswerRequest> Take() {
    KVANT_ASSIGN_OR_RETURN(ReceivedFrame frame,
                           channel.ReceiveAny("an answer request", kMaxRequestFrameBytes, timeouts.message));
    channel.set_session(frame.view.header.session);
    if (frame.view.header.type == wire::FrameType::kUpgradeOffer) {
      KVANT_ASSIGN_OR_RETURN(offer, wire::DecodeUpgradeOffer(frame.view));
      KVANT_ASSIGN_OR_RETURN(frame,
                             channel.Receive(wire::FrameType::kAnswerRequest, kMaxRequestFrameBytes, timeouts.message));
    }
    if (frame.view.header.type != wire::FrameType::kAnswerRequest) {
      return Unexpected(frame.view.header.type, "an answer request is due");
    }
    return wire::DecodeAnswerRequest(frame.view);
  }
  Status Request(const wire::UpgradeRequest& request) {
    KVANT_CHECK(offer && !open.contains(request.layer), "asked for once, where it is offered");
    open[request.layer] = request.layout;
    max_frame_bytes = std::max<uint64_t>(max_frame_bytes, wire::kBlockOffset + request.layout.total_bytes());
    return channel.Send(wire::FrameType::kUpgradeRequest, wire::EncodeUpgradeRequest(channel.session(), request));
  }
  // All that is here.
  Status Collect() {
    while (true) {
      KVANT_ASSIGN_OR_RETURN(std::optional<ReceivedFrame> frame, channel.Poll(max_frame_bytes));
      if (!frame) {
        return OkStatus();
      }
      if (frame->view.header.type != wire::FrameType::kUpgrade) {
        return Unexpected(frame->view.header.type, "none is due");
      }
      KVANT_ASSIGN_OR_RETURN(const wire::UpgradeView view, wire::DecodeUpgrade(frame->view));
      const auto asked = open.find(view.layer);
      if (asked == open.end() || asked->second != view.layout) {
        return {StatusCode::kCorruption,
                "an upgrade of layer " + std::to_string(view.layer) + " that was not asked for"};
      }
      open.erase(asked);
      arrived.push_back({std::move(frame->bytes), view});
    }
  }
  Status Give(const wire::AnswerEnd& end) {
    KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kAnswerEnd, wire::EncodeAnswerEnd(channel.session(), end)));
    return channel.Drain();
  }

  std::optional<wire::UpgradeOffer> offer;
  std::map<uint32_t, codec::UpgradeLayout> open;  ///< by layer
  std::deque<ReceivedUpgrade> arrived;
  uint64_t max_frame_bytes = kMaxVerdictFrameBytes;
};

AnswerGiver::AnswerGiver(transport::Endpoint* endpoint, const Timeouts& timeouts)
    : session_(std::make_unique<Session>(endpoint, timeouts, kMaxTextBytesInFlight)) {}

AnswerGiver::~AnswerGiver() {
  static_cast<void>(session_->End({StatusCode::kCancelled, "the answer was dropped before its end"}));
}

Result<wire::AnswerRequest> AnswerGiver::TakeRequest() { return session_->Checked(session_->Take()); }

Status AnswerGiver::SendText(const wire::AnswerText& text) {
  Channel& channel = session_->channel;
  return session_->Checked(channel.Send(wire::FrameType::kAnswerText, wire::EncodeAnswerText(channel.session(), text)));
}

Status AnswerGiver::Finish(const wire::AnswerEnd& end) {
  const Status status = session_->Checked(session_->Give(end));
  session_->has_ended = true;
  return status;
}

const std::optional<wire::UpgradeOffer>& AnswerGiver::offer() const { return session_->offer; }

Status AnswerGiver::RequestUpgrade(const wire::UpgradeRequest& request) {
  return session_->Checked(session_->Request(request));
}

std::optional<ReceivedUpgrade> AnswerGiver::TakeUpgrade() {
  if (session_->arrived.empty()) {
    return std::nullopt;
  }
  ReceivedUpgrade next = std::move(session_->arrived.front());
  session_->arrived.pop_front();
  return next;
}

Status AnswerGiver::CheckPeer() { return session_->Checked(session_->Collect()); }
Status AnswerGiver::Abort(const Status& why) { return session_->End(why); }
void AnswerGiver::Cancel() { session_->channel.RequestCancel(); }

}  // namespace kvant::transfer
