#include "kvant/transfer/sender.h"

#include <string>
#include <utility>

#include "kvant/wire/layer_frame.h"
#include "transfer/agreement.h"
#include "transfer/channel.h"

namespace kvant::transfer {

struct Sender::Session {
  enum class State : uint8_t { kNew, kOpen, kDone, kFailed };

  Session(transport::Endpoint* endpoint, const SenderOptions& chosen)
      : options(chosen), channel(endpoint, chosen.timeouts.message, chosen.max_in_flight_bytes) {
    channel.set_session(options.session);
  }

  // Runs a call that `state` allows; an error ends the session.
  template <typename Call>
  Status Run(State allowed, Call&& call) {
    if (state == State::kFailed) {
      return failure;
    }
    if (state == State::kDone) {
      return {StatusCode::kInvalidArgument, "the session has ended"};
    }
    Status status = state == allowed ? call() : Status(StatusCode::kInvalidArgument, "not the call that is due");
    return status.ok() ? status : End(std::move(status));
  }

  Status End(Status why) {
    failure = channel.Fail(std::move(why));
    state = State::kFailed;
    return failure;
  }

  Status Handshake(const wire::Hello& announced);
  Status SendLayer(uint32_t layer, const cache::LayerCache& cache, ThreadPool* pool, const codec::TierMap* tiers);
  Status Finish(const wire::Finish& finish);
  Status CheckDone(const wire::Done& done) const;

  const SenderOptions options;
  Channel channel;
  State state = State::kNew;
  Status failure;
  wire::Hello hello;
};

Status Sender::Session::Handshake(const wire::Hello& announced) {
  hello = announced;
  channel.report().started = transport::Clock::now();
  KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kHello, wire::EncodeHello(options.session, hello)));
  KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame, channel.Receive(wire::FrameType::kHelloReply, kMaxVerdictFrameBytes,
                                                                    options.timeouts.handshake));
  KVANT_ASSIGN_OR_RETURN(const wire::Verdict verdict, wire::DecodeHelloReply(frame.view));
  if (verdict.code != StatusCode::kOk) {
    channel.PeerKnows();
    return {verdict.code, "the receiver refuses: " + verdict.text};
  }
  state = State::kOpen;
  return OkStatus();
}

Status Sender::Session::SendLayer(uint32_t layer, const cache::LayerCache& cache, ThreadPool* pool,
                                  const codec::TierMap* tiers) {
  KVANT_RETURN_IF_ERROR(channel.CheckPeer());
  if (layer != channel.report().num_layers) {
    return {StatusCode::kInvalidArgument, "layer " + std::to_string(layer) + " where layer " +
                                              std::to_string(channel.report().num_layers) + " is due"};
  }
  const codec::LayerBlockLayout layout = cache.PlanBlock(options.tail, tiers);
  if (!IsLaidOut(layout, hello, options.tail, cache.window()) || cache.split().num_encoded > 0) {
    return {StatusCode::kInvalidArgument,
            "layer " + std::to_string(layer) + " has not the tokens, shape and precision of the hello, at fp16"};
  }
  if (layout.tiers && layout.counts().total() != layout.split.num_encoded) {
    return {StatusCode::kInvalidArgument, "layer " + std::to_string(layer) + ": " +
                                              std::to_string(layout.counts().total()) + " tokens have a tier, " +
                                              std::to_string(layout.split.num_encoded) + " need one"};
  }
  KVANT_RETURN_IF_ERROR(channel.WaitForRoom(wire::kBlockOffset + layout.total_bytes()));
  KVANT_ASSIGN_OR_RETURN(wire::BlockFrame frame, wire::AllocateLayer(options.session, layer, layout));
  cache.WriteBlock(layout, frame.block(), pool, tiers);
  KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kLayer, std::move(frame).Seal()));
  ++channel.report().num_layers;
  channel.report().kv_bytes_fp16 += ExactBytes(layout);
  return OkStatus();
}

Status Sender::Session::Finish(const wire::Finish& finish) {
  if (channel.report().num_layers != hello.model.shape.num_layers) {
    return {StatusCode::kInvalidArgument, std::to_string(channel.report().num_layers) + " of " +
                                              std::to_string(hello.model.shape.num_layers) + " layers were sent"};
  }
  if (const Status status = CheckFinish(hello, finish); !status.ok()) {
    return {StatusCode::kInvalidArgument, status.message()};
  }
  KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kFinish, wire::EncodeFinish(options.session, finish)));
  KVANT_RETURN_IF_ERROR(channel.Drain());
  KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                         channel.Receive(wire::FrameType::kDone, kMaxVerdictFrameBytes, options.timeouts.message));
  KVANT_ASSIGN_OR_RETURN(const wire::Done done, wire::DecodeDone(frame.view));
  KVANT_RETURN_IF_ERROR(CheckDone(done));
  state = State::kDone;
  return OkStatus();
}

Status Sender::Session::CheckDone(const wire::Done& done) const {
  const TransferReport& report = channel.report();
  if (done.received_bytes == report.sent.total() && done.num_layers == report.num_layers) {
    return OkStatus();
  }
  return {StatusCode::kMismatch, "the receiver counted " + std::to_string(done.received_bytes) + " bytes and " +
                                     std::to_string(done.num_layers) + " layers, the sender " +
                                     std::to_string(report.sent.total()) + " and " + std::to_string(report.num_layers)};
}

Sender::Sender(transport::Endpoint* endpoint, const SenderOptions& options)
    : session_(std::make_unique<Session>(endpoint, options)) {}

Sender::~Sender() { Abort({StatusCode::kCancelled, "the sender was dropped before the session was finished"}); }

Status Sender::Handshake(const wire::Hello& hello) {
  return session_->Run(Session::State::kNew, [&] { return session_->Handshake(hello); });
}

Status Sender::SendLayer(uint32_t layer, const cache::LayerCache& cache, ThreadPool* pool,
                         const codec::TierMap* tiers) {
  return session_->Run(Session::State::kOpen, [&] { return session_->SendLayer(layer, cache, pool, tiers); });
}

Status Sender::Finish(const wire::Finish& finish) {
  return session_->Run(Session::State::kOpen, [&] { return session_->Finish(finish); });
}

Result<LineState> Sender::MeasureLine() {
  LineState line;
  KVANT_RETURN_IF_ERROR(session_->Run(Session::State::kOpen, [&]() -> Status {
    KVANT_ASSIGN_OR_RETURN(line, session_->channel.MeasureLine());
    return OkStatus();
  }));
  return line;
}

void Sender::Abort(const Status& why) {
  if (session_->state == Session::State::kNew || session_->state == Session::State::kOpen) {
    static_cast<void>(session_->End(why));
  }
}

void Sender::Cancel() { session_->channel.RequestCancel(); }

const TransferReport& Sender::report() const { return session_->channel.report(); }

}  // namespace kvant::transfer
