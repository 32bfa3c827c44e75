#include "kvant/transfer/answer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "transfer/channel.h"

namespace kvant::transfer {
namespace {

// Of frames that wait for the line.
constexpr uint64_t kMaxInFlightBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxRequestFrameBytes = wire::kHeaderBytes + wire::kAnswerRequestBytes + wire::kMaxGrammarBytes;
constexpr uint64_t kMaxTextFrameBytes = wire::kHeaderBytes + wire::kAnswerTextBytes + wire::kMaxAnswerTextBytes;
constexpr uint64_t kMaxEventFrameBytes = std::max(kMaxTextFrameBytes, kMaxVerdictFrameBytes);

// One side of an answer: its channel, and whether it has ended.
struct Conversation {
  Conversation(transport::Endpoint* endpoint, const Timeouts& chosen)
      : timeouts(chosen), channel(endpoint, chosen.message, kMaxInFlightBytes) {}

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
                           channel.ReceiveAny("the answer", kMaxEventFrameBytes, timeouts.message));
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
    } else {
      return Status(StatusCode::kCorruption, std::string("a ")
                                                 .append(wire::FrameTypeName(frame.view.header.type))
                                                 .append(" frame where the answer is due"));
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
};

AnswerTaker::AnswerTaker(transport::Endpoint* endpoint, uint64_t session, const Timeouts& timeouts)
    : session_(std::make_unique<Session>(endpoint, timeouts)) {
  session_->channel.set_session(session);
}

AnswerTaker::~AnswerTaker() {
  static_cast<void>(session_->End({StatusCode::kCancelled, "the answer was dropped before its end"}));
}

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
  return event;
}

void AnswerTaker::Cancel() { session_->channel.RequestCancel(); }

struct AnswerGiver::Session : Conversation {
  using Conversation::Conversation;

  Result<wire::AnswerRequest> Take() {
    KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                           channel.Receive(wire::FrameType::kAnswerRequest, kMaxRequestFrameBytes, timeouts.message));
    channel.set_session(frame.view.header.session);
    return wire::DecodeAnswerRequest(frame.view);
  }
  Status Give(const wire::AnswerEnd& end) {
    KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kAnswerEnd, wire::EncodeAnswerEnd(channel.session(), end)));
    return channel.Drain();
  }
};

AnswerGiver::AnswerGiver(transport::Endpoint* endpoint, const Timeouts& timeouts)
    : session_(std::make_unique<Session>(endpoint, timeouts)) {}

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

Status AnswerGiver::CheckPeer() { return session_->Checked(session_->channel.CheckPeer()); }
Status AnswerGiver::Abort(const Status& why) { return session_->End(why); }
void AnswerGiver::Cancel() { session_->channel.RequestCancel(); }

}  // namespace kvant::transfer
