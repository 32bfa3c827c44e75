#include "kvant/transfer/receiver.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvant/base/check.h"
#include "kvant/wire/layer_frame.h"
#include "transfer/agreement.h"
#include "transfer/channel.h"

namespace kvant::transfer {

struct Receiver::Session {
  Session(transport::Endpoint* endpoint, ReceiverOptions chosen)
      : options(std::move(chosen)), channel(endpoint, options.timeouts.message, kMaxVerdictFrameBytes) {}

  Result<wire::Hello> TakeHello();
  Status Reply(const Status& verdict);
  Result<Received> TakePrompt(const wire::Hello& hello);
  Status AdoptLayer(const wire::Hello& hello, uint32_t layer, cache::Sequence& sequence);
  Result<wire::Finish> TakeFinish(const wire::Hello& hello);

  const ReceiverOptions options;
  Channel channel;
  bool has_run = false;
};

Result<wire::Hello> Receiver::Session::TakeHello() {
  KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                         channel.Receive(wire::FrameType::kHello, kMaxVerdictFrameBytes, options.timeouts.handshake));
  channel.report().started = channel.report().last_message;
  channel.set_session(frame.view.header.session);
  return wire::DecodeHello(frame.view);
}

Status Receiver::Session::Reply(const Status& verdict) {
  KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kHelloReply,
                                     wire::EncodeHelloReply(channel.session(), {verdict.code(), verdict.message()})));
  return channel.Drain();
}

Result<Received> Receiver::Session::TakePrompt(const wire::Hello& hello) {
  Received received{hello, {}, cache::Sequence(hello.model.shape, hello.precision, options.isa, options.account)};
  if (!options.windows.empty()) {
    received.sequence.SetWindows(options.windows);
  }
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    KVANT_RETURN_IF_ERROR(AdoptLayer(hello, layer, received.sequence));
    ++channel.report().num_layers;
    if (options.progress) {
      options.progress(layer + 1, hello.model.shape.num_layers);
    }
  }
  KVANT_ASSIGN_OR_RETURN(received.finish, TakeFinish(hello));
  const wire::Done done{channel.report().received.total(), hello.model.shape.num_layers};
  KVANT_RETURN_IF_ERROR(channel.Send(wire::FrameType::kDone, wire::EncodeDone(channel.session(), done)));
  KVANT_RETURN_IF_ERROR(channel.Drain());
  return received;
}

Status Receiver::Session::AdoptLayer(const wire::Hello& hello, uint32_t layer, cache::Sequence& sequence) {
  KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                         channel.Receive(wire::FrameType::kLayer, MaxFrameBytes(hello), options.timeouts.message));
  KVANT_ASSIGN_OR_RETURN(const wire::LayerView view, wire::DecodeLayer(frame.view));
  KVANT_RETURN_IF_ERROR(CheckLayer(hello, options.WindowOf(layer), layer, view));
  channel.report().kv_bytes_fp16 += ExactBytes(view.layout);
  return sequence.layer(layer).AdoptBlock(view.layout, view.block).WithContext("layer " + std::to_string(layer));
}

Result<wire::Finish> Receiver::Session::TakeFinish(const wire::Hello& hello) {
  KVANT_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                         channel.Receive(wire::FrameType::kFinish, MaxFrameBytes(hello), options.timeouts.message));
  KVANT_ASSIGN_OR_RETURN(wire::Finish finish, wire::DecodeFinish(frame.view));
  KVANT_RETURN_IF_ERROR(CheckFinish(hello, finish));
  return finish;
}

Receiver::Receiver(transport::Endpoint* endpoint, ReceiverOptions options)
    : session_(std::make_unique<Session>(endpoint, std::move(options))) {}

Receiver::~Receiver() = default;

Result<Received> Receiver::Run() {
  KVANT_CHECK(!std::exchange(session_->has_run, true), "a receiver takes one session");
  Result<wire::Hello> hello = session_->TakeHello();
  if (!hello.ok()) {
    return session_->channel.Fail(hello.status());
  }
  const Status verdict = CheckHello(*hello, session_->options);
  const Status replied = session_->Reply(verdict);
  if (!verdict.ok()) {
    return session_->channel.Close(verdict);
  }
  if (!replied.ok()) {
    return session_->channel.Fail(replied);
  }
  Result<Received> received = session_->TakePrompt(*hello);
  return received.ok() ? std::move(received) : session_->channel.Fail(received.status());
}

void Receiver::Cancel() { session_->channel.RequestCancel(); }

const TransferReport& Receiver::report() const { return session_->channel.report(); }

}  // namespace kvant::transfer
