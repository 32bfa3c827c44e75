#include "transport/ucx/endpoint.h"

#include <algorithm>
#include <utility>

#include "kvant/base/check.h"

namespace kvant::transport {
namespace {

double NanosecondsPerByte(double gigabits_per_second) {
  return gigabits_per_second > 0 ? 8.0 / gigabits_per_second : 0.0;
}

}  // namespace

UcxEndpoint::UcxEndpoint(std::unique_ptr<UcxWorker> worker, const UcxOptions& options)
    : worker_(std::move(worker)),
      options_(options),
      outbox_(NanosecondsPerByte(options.gigabits_per_second), options.max_queued_bytes),
      inbox_(options.max_queued_bytes) {}

Result<std::unique_ptr<Endpoint>> UcxEndpoint::Open(std::unique_ptr<UcxWorker> worker, ucp_ep_params_t params,
                                                    const UcxOptions& options, Deadline deadline) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(std::move(worker), options));
  KVANT_RETURN_IF_ERROR(endpoint->Connect(params));
  KVANT_RETURN_IF_ERROR(endpoint->WaitForGreeting(deadline));
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

Status UcxEndpoint::WaitForGreeting(Deadline deadline) {
  std::unique_lock lock(mutex_);
  WaitUntil(lock, deadline, [&] { return greeted_ || closed_; });
  KVANT_RETURN_IF_ERROR(refusal_);
  if (greeted_) {
    return OkStatus();
  }
  return closed_ ? Closed() : Status(StatusCode::kTimeout, "no answer by the deadline");
}

UcxEndpoint::~UcxEndpoint() {
  Close();
  if (thread_.joinable()) {
    thread_.join();
  }
  worker_.reset();  // UCX lets go of every buffer that it still has
}

Status UcxEndpoint::WaitForRoom(uint64_t num_bytes, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool in_time = WaitUntil(lock, deadline, [&] { return closed_ || outbox_.HasRoom(num_bytes); });
  if (closed_) {
    return Closed();
  }
  return in_time ? OkStatus()
                 : Status(StatusCode::kTimeout, "no room for " + std::to_string(num_bytes) + " bytes by the deadline");
}

Result<OperationId> UcxEndpoint::Post(Buffer&& message, Deadline deadline) {
  KVANT_CHECK(message.size() > 0, "an empty message is nothing to send");
  const std::lock_guard lock(mutex_);
  if (closed_) {
    return Closed();
  }
  if (!outbox_.HasRoom(message.size())) {
    return Status(StatusCode::kCapacityExceeded,
                  "no room for " + std::to_string(message.size()) + " bytes: the receiver is behind");
  }
  const OperationId id = outbox_.Push(std::move(message), Clock::now(), deadline);
  worker_->Wake();
  return id;
}

Result<Completion> UcxEndpoint::Wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool in_time = WaitUntil(lock, deadline, [&] { return outbox_.has_completion() || outbox_.is_idle(); });
  if (outbox_.has_completion()) {
    return outbox_.TakeCompletion();
  }
  if (!in_time) {
    return Status(StatusCode::kTimeout, "no operation ended by the deadline");
  }
  return closed_ ? Closed() : Status(StatusCode::kNotFound, "nothing is in flight");
}

Result<Buffer> UcxEndpoint::Receive(uint64_t max_bytes, Deadline deadline) {
  std::unique_lock lock(mutex_);
  std::optional<Result<Buffer>> taken = inbox_.Take(max_bytes);
  if (!taken && !closed_) {
    worker_->Wake();  // it may be fetched now
  }
  const bool in_time = taken || WaitUntil(lock, deadline, [&] {
                         taken = inbox_.Take(max_bytes);
                         return taken || closed_;
                       });
  if (taken) {
    worker_->Wake();  // the peer is told of the room
    return std::move(*taken);
  }
  return in_time ? Closed() : Status(StatusCode::kTimeout, "no message by the deadline");
}

Status UcxEndpoint::Cancel(OperationId id) {
  const std::lock_guard lock(mutex_);
  const bool cancelled = outbox_.Cancel(id, Clock::now());
  worker_->Wake();
  changed_.notify_all();
  return cancelled ? OkStatus() : Status(StatusCode::kNotFound, "no such operation is in flight");
}

void UcxEndpoint::Close() {
  const std::lock_guard lock(mutex_);
  inbox_.DropArrived();
  End("the connection is closed");
  worker_->Wake();
}

Counters UcxEndpoint::counters() const {
  const std::lock_guard lock(mutex_);
  return {outbox_.delivered_bytes(), outbox_.delivered_messages(), inbox_.received_bytes(), inbox_.received_messages()};
}

template <typename Ready>
bool UcxEndpoint::WaitUntil(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready&& ready) {
  while (!ready()) {
    if (Clock::now() >= deadline) {
      return false;
    }
    changed_.wait_until(lock, deadline);
  }
  return true;
}

void UcxEndpoint::End(std::string reason) {
  if (!closed_) {
    closed_ = true;
    reason_ = std::move(reason);
    outbox_.CutOff(Clock::now());
    inbox_.CutOff();
  }
  changed_.notify_all();
}

}  // namespace kvant::transport
