#include "transport/timed_queue.h"

#include <algorithm>
#include <utility>

namespace kvant::transport {

OperationId TimedQueue::Push(Buffer&& message, Clock::time_point now, Deadline deadline) {
  queued_bytes_ += message.size();
  in_flight_.push_back({++last_id_, std::move(message), now, deadline});
  return last_id_;
}

Clock::time_point TimedQueue::FinishOf(const InFlight& front) const {
  const double nanoseconds = nanoseconds_per_byte_ * static_cast<double>(front.message.size());
  return StartOf(front) + std::chrono::nanoseconds(static_cast<int64_t>(nanoseconds));
}

void TimedQueue::Advance(Clock::time_point now) {
  while (!in_flight_.empty()) {
    const InFlight& front = in_flight_.front();
    const Clock::time_point finish = FinishOf(front);
    if (finish <= front.deadline && finish <= now) {
      Deliver(finish);
    } else if (finish > front.deadline && front.deadline <= now) {
      Fail(0, StatusCode::kTimeout, "the message was not delivered by its deadline", front.deadline);
    } else {
      break;
    }
  }
  for (size_t index = 1; index < in_flight_.size();) {
    if (in_flight_[index].deadline <= now) {
      Fail(index, StatusCode::kTimeout, "the message was not delivered by its deadline", in_flight_[index].deadline);
    } else {
      ++index;
    }
  }
}

std::optional<Clock::time_point> TimedQueue::NextEvent() const {
  if (in_flight_.empty()) {
    return std::nullopt;
  }
  Clock::time_point next = FinishOf(in_flight_.front());
  for (const InFlight& message : in_flight_) {
    next = std::min(next, message.deadline);
  }
  return next;
}

bool TimedQueue::Cancel(OperationId id, Clock::time_point now) {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& m) { return m.id == id; });
  if (found == in_flight_.end()) {
    return false;
  }
  Fail(static_cast<size_t>(found - in_flight_.begin()), StatusCode::kCancelled, "the message was cancelled", now);
  return true;
}

void TimedQueue::CutOff(Clock::time_point now) {
  while (!in_flight_.empty()) {
    Fail(0, StatusCode::kTransportClosed, "the connection was closed before the message was delivered", now);
  }
}

void TimedQueue::DropArrived() {
  for (const Buffer& message : arrived_) {
    queued_bytes_ -= message.size();
  }
  arrived_.clear();
}

Buffer TimedQueue::TakeArrived() {
  Buffer message = std::move(arrived_.front());
  arrived_.pop_front();
  queued_bytes_ -= message.size();
  return message;
}

Completion TimedQueue::TakeCompletion() {
  Completion completion = std::move(completions_.front());
  completions_.pop_front();
  return completion;
}

void TimedQueue::Deliver(Clock::time_point at) {
  InFlight& front = in_flight_.front();
  line_free_ = at;
  delivered_bytes_ += front.message.size();
  ++delivered_messages_;
  completions_.push_back({front.id, OkStatus(), front.message.size(), front.posted, at});
  arrived_.push_back(std::move(front.message));
  in_flight_.pop_front();
}

void TimedQueue::Fail(size_t index, StatusCode code, const char* why, Clock::time_point at) {
  const auto message = in_flight_.begin() + static_cast<std::ptrdiff_t>(index);
  if (index == 0 && StartOf(*message) < at) {
    line_free_ = at;  // the line was busy with it until now
  }
  queued_bytes_ -= message->message.size();
  completions_.push_back({message->id, Status(code, why), 0, message->posted, at});
  in_flight_.erase(message);
}

}  // namespace kvant::transport
