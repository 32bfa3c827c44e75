#include "transfer/channel.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvant::transfer {
namespace {

using transport::After;
using transport::Deadline;

constexpr std::chrono::milliseconds kSlice{20};        // of a wait, between looks at the cancel flag
constexpr std::chrono::milliseconds kLastWords{1000};  // for telling the peer why

StatusCode CodeOf(const Status& status) { return status.code(); }
template <typename T>
StatusCode CodeOf(const Result<T>& result) {
  return result.status().code();
}

std::string Named(wire::FrameType type) { return std::string(wire::FrameTypeName(type)) + " frame"; }

}  // namespace

Status Unexpected(wire::FrameType type, const std::string& due) {
  return {StatusCode::kCorruption, "a " + Named(type) + " where " + due};
}

template <typename Call>
auto Channel::Interruptible(Deadline deadline, Call&& call) -> decltype(call(deadline)) {
  while (true) {
    KVANT_RETURN_IF_ERROR(CheckCancelled());
    const Deadline slice = std::min(deadline, After(kSlice));
    auto result = call(slice);
    if (CodeOf(result) != StatusCode::kTimeout || slice == deadline) {
      return result;
    }
  }
}

Status Channel::CheckCancelled() const {
  const bool cancelled = cancel_requested_.load(std::memory_order_relaxed);
  return cancelled ? Status(StatusCode::kCancelled, "the session was cancelled") : OkStatus();
}

Status Channel::WaitForRoom(uint64_t num_bytes) {
  const Deadline deadline = After(timeout_);
  while (in_flight_bytes_ > 0 && in_flight_bytes_ + num_bytes > max_in_flight_bytes_) {
    KVANT_RETURN_IF_ERROR(CollectOne(deadline));
  }
  return Interruptible(deadline, [&](Deadline slice) { return endpoint_->WaitForRoom(num_bytes, slice); });
}

Status Channel::Send(wire::FrameType type, Result<Buffer> frame) {
  KVANT_RETURN_IF_ERROR(frame.status());
  const uint64_t num_bytes = frame->size();
  KVANT_RETURN_IF_ERROR(WaitForRoom(num_bytes));
  KVANT_ASSIGN_OR_RETURN(const transport::OperationId id, endpoint_->Post(std::move(frame).value(), After(timeout_)));
  in_flight_.emplace(id, Posted{type, num_bytes});
  in_flight_bytes_ += num_bytes;
  return OkStatus();
}

Status Channel::Collect() {
  while (const auto completion = endpoint_->Poll()) {
    KVANT_RETURN_IF_ERROR(Take(*completion));
  }
  return OkStatus();
}

Status Channel::Drain() {
  const Deadline deadline = After(timeout_);
  while (!in_flight_.empty()) {
    KVANT_RETURN_IF_ERROR(CollectOne(deadline));
  }
  return OkStatus();
}

Result<LineState> Channel::MeasureLine() {
  const Deadline deadline = After(timeout_);
  while (report_.line.bytes_per_second() == 0 && !in_flight_.empty()) {
    KVANT_RETURN_IF_ERROR(CollectOne(deadline));
  }
  while (const auto completion = endpoint_->Poll()) {
    KVANT_RETURN_IF_ERROR(Take(*completion));
  }
  LineState state{report_.line.bytes_per_second(), in_flight_bytes_};
  if (in_flight_.empty()) {
    return state;
  }
  // The oldest one is still under way: some of it has gone already, and the line cannot be faster than that.
  const Posted& oldest = in_flight_.begin()->second;
  const std::chrono::duration<double> busy = transport::Clock::now() - std::max(oldest.when, report_.line.free_since());
  const double seconds = std::max(busy.count(), 1e-9);
  state.bytes_per_second = std::min(state.bytes_per_second, static_cast<double>(oldest.num_bytes) / seconds);
  const auto gone = static_cast<uint64_t>(state.bytes_per_second * seconds);
  state.queued_bytes -= std::min(gone, oldest.num_bytes);
  return state;
}

Status Channel::CollectOne(Deadline deadline) {
  KVANT_ASSIGN_OR_RETURN(const transport::Completion completion,
                         Interruptible(deadline, [&](Deadline slice) { return endpoint_->Wait(slice); }));
  return Take(completion);
}

Status Channel::Take(const transport::Completion& completion) {
  const auto found = in_flight_.find(completion.id);
  if (found == in_flight_.end()) {
    return {StatusCode::kInternal, "the transport completed an operation that was not posted"};
  }
  const Posted posted = found->second;
  in_flight_.erase(found);
  in_flight_bytes_ -= posted.num_bytes;
  if (completion.status.ok()) {
    report_.sent.Add(posted.type, posted.num_bytes);
    report_.last_message = completion.finished;
    if (posted.type == wire::FrameType::kLayer) {
      report_.line.Add(completion);
    }
  }
  return completion.status.WithContext(Named(posted.type));
}

Result<ReceivedFrame> Channel::ReceiveAny(const std::string& due, uint64_t max_bytes,
                                          std::chrono::milliseconds timeout) {
  const auto receive = [&](Deadline slice) { return endpoint_->Receive(max_bytes, slice); };
  Result<Buffer> bytes = Interruptible(After(timeout), receive);
  if (!bytes.ok()) {
    return bytes.status().WithContext("waiting for " + due);
  }
  return Open(std::move(bytes).value());
}

Result<ReceivedFrame> Channel::Receive(wire::FrameType due, uint64_t max_bytes, std::chrono::milliseconds timeout) {
  KVANT_ASSIGN_OR_RETURN(ReceivedFrame frame, ReceiveAny("a " + Named(due), max_bytes, timeout));
  if (frame.view.header.type != due) {
    return Unexpected(frame.view.header.type, "a " + Named(due) + " is due");
  }
  return frame;
}

Result<std::optional<ReceivedFrame>> Channel::Poll(uint64_t max_bytes) {
  KVANT_RETURN_IF_ERROR(CheckCancelled());
  Result<Buffer> bytes = endpoint_->Receive(max_bytes, Deadline::min());
  if (CodeOf(bytes) == StatusCode::kTimeout) {
    return std::optional<ReceivedFrame>();
  }
  KVANT_RETURN_IF_ERROR(bytes.status());
  KVANT_ASSIGN_OR_RETURN(ReceivedFrame frame, Open(std::move(bytes).value()));
  return std::optional(std::move(frame));
}

Status Channel::CheckPeer() {
  KVANT_ASSIGN_OR_RETURN(const std::optional<ReceivedFrame> frame, Poll(kMaxVerdictFrameBytes));
  return frame ? Unexpected(frame->view.header.type, "none is due") : OkStatus();
}

Result<ReceivedFrame> Channel::Open(Buffer bytes) {
  report_.last_message = transport::Clock::now();
  Result<wire::FrameView> view = wire::OpenFrame(std::as_const(bytes).bytes());
  report_.received.Add(view.ok() ? view->header.type : wire::FrameType{}, bytes.size());
  KVANT_RETURN_IF_ERROR(view.status());
  const wire::FrameHeader& header = view->header;
  const bool early_error = header.type == wire::FrameType::kError && header.session == 0;
  if (session_ && header.session != *session_ && !early_error) {
    return Status(StatusCode::kCorruption, "a " + Named(header.type) + " of session " + std::to_string(header.session) +
                                               " in session " + std::to_string(*session_));
  }
  if (header.type == wire::FrameType::kError || header.type == wire::FrameType::kCancel) {
    return PeerError(*view);
  }
  return ReceivedFrame{std::move(bytes), *view};
}

Status Channel::PeerError(const wire::FrameView& frame) {
  peer_knows_ = true;
  if (frame.header.type == wire::FrameType::kCancel) {
    KVANT_RETURN_IF_ERROR(wire::CheckCancel(frame));
    return {StatusCode::kCancelled, "the peer cancelled the session"};
  }
  KVANT_ASSIGN_OR_RETURN(const wire::Verdict verdict, wire::DecodeError(frame));
  return {verdict.code, "the peer reports: " + verdict.text};
}

Status Channel::Fail(Status why) {
  why = ReasonOfPeer(std::move(why));
  TakeBack();
  if (!peer_knows_ && why.code() != StatusCode::kTransportClosed) {
    TellPeer(why);
  }
  endpoint_->Close();
  return why;
}

Status Channel::Close(Status why) {
  TakeBack();
  endpoint_->Close();
  return why;
}

Status Channel::ReasonOfPeer(Status why) {
  while (why.code() == StatusCode::kTransportClosed && !peer_knows_) {
    Result<Buffer> bytes = endpoint_->Receive(kMaxVerdictFrameBytes, Deadline::min());
    if (CodeOf(bytes) == StatusCode::kTransportClosed || CodeOf(bytes) == StatusCode::kTimeout) {
      break;
    }
    const Result<ReceivedFrame> frame = bytes.ok() ? Open(std::move(bytes).value()) : bytes.status();
    if (peer_knows_) {
      return frame.status();
    }
  }
  return why;
}

void Channel::TakeBack() {
  for (const auto& [id, posted] : in_flight_) {
    // Not found where it has just ended: its completion tells how.
    static_cast<void>(endpoint_->Cancel(id));
  }
  while (const auto completion = endpoint_->Poll()) {
    static_cast<void>(Take(*completion));
  }
}

void Channel::TellPeer(const Status& why) {
  const bool cancel = why.code() == StatusCode::kCancelled && session_;
  Result<Buffer> frame =
      cancel ? wire::EncodeCancel(*session_) : wire::EncodeError(session(), {why.code(), why.message()});
  const Deadline deadline = After(kLastWords);
  if (!frame.ok() || !endpoint_->WaitForRoom(frame->size(), deadline).ok()) {
    return;  // the peer will see a closed connection
  }
  const uint64_t num_bytes = frame->size();
  const Result<transport::OperationId> id = endpoint_->Post(std::move(frame).value(), deadline);
  if (!id.ok()) {
    return;
  }
  in_flight_.emplace(*id, Posted{cancel ? wire::FrameType::kCancel : wire::FrameType::kError, num_bytes});
  in_flight_bytes_ += num_bytes;
  if (const auto completion = endpoint_->Wait(deadline); completion.ok()) {
    static_cast<void>(Take(*completion));
  }
}

}  // namespace kvant::transfer
