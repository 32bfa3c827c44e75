#include "kvant/transport/loopback.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "kvant/base/check.h"
#include "transport/timed_queue.h"

namespace kvant::transport {
namespace {

// What both ends share. Everything that happens, happens in a call of one of them: time passes by itself, and a
// waiting call wakes when the next message is due.
struct Link {
  Link(double nanoseconds_per_byte, uint64_t max_queued_bytes)
      : directions{TimedQueue(nanoseconds_per_byte, max_queued_bytes),
                   TimedQueue(nanoseconds_per_byte, max_queued_bytes)} {}

  std::mutex mutex;
  std::condition_variable changed;
  std::array<TimedQueue, 2> directions;  // by sending side
  bool closed = false;
};

Status Closed() { return {StatusCode::kTransportClosed, "the connection is closed"}; }

class LoopbackEndpoint final : public Endpoint {
 public:
  LoopbackEndpoint(std::shared_ptr<Link> link, size_t side) : link_(std::move(link)), side_(side) {}
  ~LoopbackEndpoint() override { Close(); }

  Status WaitForRoom(uint64_t num_bytes, Deadline deadline) override {
    std::unique_lock lock(link_->mutex);
    const bool in_time =
        WaitFor(lock, outgoing(), deadline, [&] { return link_->closed || outgoing().HasRoom(num_bytes); });
    if (link_->closed) {
      return Closed();
    }
    return in_time
               ? OkStatus()
               : Status(StatusCode::kTimeout, "no room for " + std::to_string(num_bytes) + " bytes by the deadline");
  }

  Result<OperationId> Post(Buffer&& message, Deadline deadline) override {
    KVANT_CHECK(message.size() > 0, "an empty message is nothing to send");
    const std::lock_guard lock(link_->mutex);
    if (link_->closed) {
      return Closed();
    }
    const Clock::time_point now = Clock::now();
    outgoing().Advance(now);
    if (!outgoing().HasRoom(message.size())) {
      return Status(StatusCode::kCapacityExceeded,
                    "no room for " + std::to_string(message.size()) + " bytes: the receiver is behind");
    }
    const OperationId id = outgoing().Push(std::move(message), now, deadline);
    link_->changed.notify_all();
    return id;
  }

  Result<Completion> Wait(Deadline deadline) override {
    std::unique_lock lock(link_->mutex);
    const bool in_time =
        WaitFor(lock, outgoing(), deadline, [&] { return outgoing().has_completion() || outgoing().is_idle(); });
    if (outgoing().has_completion()) {
      return outgoing().TakeCompletion();
    }
    if (!in_time) {
      return Status(StatusCode::kTimeout, "no operation ended by the deadline");
    }
    return link_->closed ? Closed() : Status(StatusCode::kNotFound, "nothing is in flight");
  }

  Result<Buffer> Receive(uint64_t max_bytes, Deadline deadline) override {
    std::unique_lock lock(link_->mutex);
    const bool in_time = WaitFor(lock, incoming(), deadline, [&] { return incoming().has_arrived() || link_->closed; });
    if (!incoming().has_arrived()) {
      return in_time ? Closed() : Status(StatusCode::kTimeout, "no message by the deadline");
    }
    Buffer message = incoming().TakeArrived();
    link_->changed.notify_all();
    if (message.size() > max_bytes) {
      return Status(StatusCode::kCapacityExceeded, "a message of " + std::to_string(message.size()) +
                                                       " bytes where at most " + std::to_string(max_bytes) +
                                                       " are expected");
    }
    received_bytes_ += message.size();
    ++received_messages_;
    return message;
  }

  Status Cancel(OperationId id) override {
    const std::lock_guard lock(link_->mutex);
    const Clock::time_point now = Clock::now();
    outgoing().Advance(now);
    const bool cancelled = outgoing().Cancel(id, now);
    link_->changed.notify_all();
    return cancelled ? OkStatus() : Status(StatusCode::kNotFound, "no such operation is in flight");
  }

  void Close() override {
    const std::lock_guard lock(link_->mutex);
    const Clock::time_point now = Clock::now();
    for (TimedQueue& direction : link_->directions) {
      direction.Advance(now);
      direction.CutOff(now);
    }
    incoming().DropArrived();
    link_->closed = true;
    link_->changed.notify_all();
  }

  Counters counters() const override {
    const std::lock_guard lock(link_->mutex);
    TimedQueue& sent = link_->directions[side_];
    sent.Advance(Clock::now());
    return {sent.delivered_bytes(), sent.delivered_messages(), received_bytes_, received_messages_};
  }

 private:
  TimedQueue& outgoing() { return link_->directions[side_]; }
  TimedQueue& incoming() { return link_->directions[1 - side_]; }

  // Lets time pass in one direction until `ready` or the deadline; true when ready.
  template <typename Ready>
  bool WaitFor(std::unique_lock<std::mutex>& lock, TimedQueue& direction, Deadline deadline, Ready&& ready) {
    while (true) {
      const Clock::time_point now = Clock::now();
      direction.Advance(now);
      if (ready()) {
        return true;
      }
      if (now >= deadline) {
        return false;
      }
      const Clock::time_point event = direction.NextEvent().value_or(Deadline::max());
      link_->changed.wait_until(lock, std::min(deadline, event));
    }
  }

  const std::shared_ptr<Link> link_;
  const size_t side_;
  uint64_t received_bytes_ = 0;
  uint64_t received_messages_ = 0;
};

}  // namespace

Result<LoopbackPair> MakeLoopback(const LoopbackOptions& options) {
  if (!std::isfinite(options.gigabits_per_second) || options.gigabits_per_second < 0) {
    return Status(StatusCode::kInvalidArgument, "gigabits_per_second must be 0 or more");
  }
  if (options.max_queued_bytes == 0) {
    return Status(StatusCode::kInvalidArgument, "max_queued_bytes must be at least 1");
  }
  const double nanoseconds_per_byte = options.gigabits_per_second > 0 ? 8.0 / options.gigabits_per_second : 0.0;
  auto link = std::make_shared<Link>(nanoseconds_per_byte, options.max_queued_bytes);
  return LoopbackPair{std::make_unique<LoopbackEndpoint>(link, 0), std::make_unique<LoopbackEndpoint>(link, 1)};
}

}  // namespace kvant::transport
