#include "transport/outbox.h"

#include <algorithm>
#include <utility>

namespace kvant::transport {
namespace {

constexpr const char* kLate = "the message was not delivered by its deadline";
constexpr const char* kCancelled = "the message was cancelled";
constexpr const char* kClosed = "the connection was closed before the message was delivered";

}  // namespace

void Outbox::Limit(uint64_t max_queued_bytes) { max_queued_bytes_ = std::min(max_queued_bytes_, max_queued_bytes); }

bool Outbox::HasRoom(uint64_t num_bytes) const {
  if (on_line_.size() + (last_sequence_ - peer_.taken_messages) >= kMaxMessages) {
    return false;
  }
  const uint64_t queued = on_line_bytes_ + sent_bytes_ - peer_.taken_bytes;
  return queued == 0 || (queued <= max_queued_bytes_ && num_bytes <= max_queued_bytes_ - queued);
}

OperationId Outbox::Push(Buffer&& message, Clock::time_point now, Deadline deadline) {
  const uint64_t num_bytes = message.size();
  const OperationId id = line_.Push(std::move(message), now, deadline);
  on_line_.emplace(id, Operation{id, num_bytes, now, deadline});
  on_line_bytes_ += num_bytes;
  return id;
}

void Outbox::Advance(Clock::time_point now) {
  line_.Advance(now);
  CollectFromLine();
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    sent = sent->second.deadline <= now ? Fail(sent, StatusCode::kTimeout, kLate, sent->second.deadline) : ++sent;
  }
}

// The line's successes have only left it; its failures are ends.
void Outbox::CollectFromLine() {
  while (line_.has_completion()) {
    Completion completion = line_.TakeCompletion();
    const auto operation = on_line_.find(completion.id);
    on_line_bytes_ -= operation->second.num_bytes;
    if (completion.status.ok()) {
      ready_.push_back({++last_sequence_, line_.TakeArrived()});
      sent_bytes_ += operation->second.num_bytes;
      sent_.emplace(last_sequence_, operation->second);
    } else {
      completions_.push_back(std::move(completion));
    }
    on_line_.erase(operation);
  }
}

std::optional<Clock::time_point> Outbox::NextEvent() const {
  std::optional<Clock::time_point> next = line_.NextEvent();
  for (const auto& [sequence, operation] : sent_) {
    next = std::min(next.value_or(Deadline::max()), operation.deadline);
  }
  return next;
}

Outgoing Outbox::TakeReady() {
  Outgoing outgoing = std::move(ready_.front());
  ready_.pop_front();
  return outgoing;
}

bool Outbox::Take(const Progress& progress, Clock::time_point now) {
  const bool possible = progress.through >= peer_.through && progress.through <= last_sequence_ &&
                        progress.taken_messages >= peer_.taken_messages && progress.taken_messages <= last_sequence_ &&
                        progress.taken_bytes >= peer_.taken_bytes && progress.taken_bytes <= sent_bytes_;
  if (!possible) {
    return false;
  }
  peer_ = progress;
  while (!sent_.empty() && sent_.begin()->first <= progress.through) {
    Deliver(sent_.begin(), now);
  }
  return true;
}

bool Outbox::Cancel(OperationId id, Clock::time_point now) {
  if (line_.Cancel(id, now)) {
    CollectFromLine();
    return true;
  }
  const auto sent = std::find_if(sent_.begin(), sent_.end(), [&](const auto& entry) { return entry.second.id == id; });
  if (sent == sent_.end()) {
    return false;
  }
  Fail(sent, StatusCode::kCancelled, kCancelled, now);
  return true;
}

void Outbox::CutOff(Clock::time_point now) {
  line_.CutOff(now);
  CollectFromLine();
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    sent = Fail(sent, StatusCode::kTransportClosed, kClosed, now);
  }
  ready_.clear();
  revoked_.clear();
}

Completion Outbox::TakeCompletion() {
  Completion completion = std::move(completions_.front());
  completions_.pop_front();
  return completion;
}

void Outbox::Deliver(Sent::iterator sent, Clock::time_point at) {
  const Operation& operation = sent->second;
  delivered_bytes_ += operation.num_bytes;
  ++delivered_messages_;
  completions_.push_back({operation.id, OkStatus(), operation.num_bytes, operation.posted, at});
  sent_.erase(sent);
}

// Its room stays taken until the peer says that it will not hand it out.
Outbox::Sent::iterator Outbox::Fail(Sent::iterator sent, StatusCode code, const char* why, Clock::time_point at) {
  completions_.push_back({sent->second.id, Status(code, why), 0, sent->second.posted, at});
  revoked_.push_back(sent->first);
  return sent_.erase(sent);
}

}  // namespace kvant::transport
