#include "transport/inbox.h"

#include <string>

namespace kvant::transport {
namespace {

Status TooLarge(uint64_t num_bytes, uint64_t max_bytes) {
  return {StatusCode::kCapacityExceeded, "a message of " + std::to_string(num_bytes) + " bytes where at most " +
                                             std::to_string(max_bytes) + " are expected"};
}

}  // namespace

bool Inbox::Announce(uint64_t sequence, uint64_t num_bytes, Handle handle) {
  if (!Admits(sequence, num_bytes)) {
    return false;
  }
  Insert(sequence, {State::kAnnounced, num_bytes, handle, {}, {}});
  return true;
}

bool Inbox::Arrive(uint64_t sequence, Buffer&& message) {
  const uint64_t num_bytes = message.size();
  if (!Admits(sequence, num_bytes)) {
    return false;
  }
  Insert(sequence, {State::kArrived, num_bytes, nullptr, std::move(message), {}});
  return true;
}

void Inbox::Finish(uint64_t sequence, Result<Buffer> message) {
  const auto found = entries_.find(sequence);
  if (found == entries_.end() || found->second.state != State::kFetching) {
    return;  // revoked, or cut off, meanwhile
  }
  Entry& entry = found->second;
  if (message.ok()) {
    entry.state = State::kArrived;
    entry.message = std::move(message).value();
  } else {
    entry.state = State::kRefused;
    entry.refusal = message.status();
  }
  Settle();
}

void Inbox::Revoke(uint64_t sequence) {
  const auto found = entries_.find(sequence);
  if (found == entries_.end() || found->second.state == State::kGone) {
    return;  // handed out before the word came
  }
  LetGo(found->second);
  Settle();
}

void Inbox::CutOff() {
  bool whole = true;
  for (auto& [sequence, entry] : entries_) {
    whole = whole && (entry.state == State::kArrived || entry.state == State::kGone || entry.state == State::kRefused);
    if (!whole && entry.state != State::kGone) {
      LetGo(entry);
    }
  }
  Settle();
}

void Inbox::DropArrived() {
  for (auto& [sequence, entry] : entries_) {
    if (entry.state != State::kGone) {
      LetGo(entry);
    }
  }
  Settle();
}

std::optional<Inbox::Fetch> Inbox::NextFetch() {
  for (auto& [sequence, entry] : entries_) {
    if (entry.state == State::kAnnounced && entry.num_bytes <= expected_bytes_) {
      entry.state = State::kFetching;
      return Fetch{sequence, entry.num_bytes, std::exchange(entry.handle, nullptr)};
    }
  }
  return std::nullopt;
}

std::optional<Progress> Inbox::TakeProgress() {
  const bool changed = progress_.through != told_.through || progress_.taken_messages != told_.taken_messages;
  told_ = progress_;
  return changed ? std::optional(progress_) : std::nullopt;
}

std::optional<Result<Buffer>> Inbox::Take(uint64_t max_bytes) {
  expected_bytes_ = max_bytes;
  const auto front = entries_.find(next_);
  if (front == entries_.end()) {
    return std::nullopt;
  }
  Entry& entry = front->second;
  const bool too_large = entry.num_bytes > max_bytes;
  const bool is_here = entry.state == State::kArrived || entry.state == State::kRefused;
  if (!is_here && !too_large) {
    return std::nullopt;  // it is being fetched, or will be
  }
  std::optional<Result<Buffer>> taken;
  if (too_large) {
    taken = TooLarge(entry.num_bytes, max_bytes);
  } else if (entry.state == State::kRefused) {
    taken = entry.refusal;
  } else {
    received_bytes_ += entry.num_bytes;
    ++received_messages_;
    taken = std::move(entry.message);
  }
  LetGo(entry);
  Settle();
  return taken;
}

bool Inbox::Admits(uint64_t sequence, uint64_t num_bytes) const {
  const bool fits =
      waiting_bytes_ == 0 || (waiting_bytes_ <= max_queued_bytes_ && num_bytes <= max_queued_bytes_ - waiting_bytes_);
  return fits && num_bytes > 0 && sequence >= next_ && sequence - next_ < Outbox::kMaxMessages &&
         !entries_.contains(sequence);
}

void Inbox::Insert(uint64_t sequence, Entry&& entry) {
  waiting_bytes_ += entry.num_bytes;
  entries_.emplace(sequence, std::move(entry));
  Settle();
}

void Inbox::LetGo(Entry& entry) {
  if (entry.state == State::kAnnounced) {
    released_.push_back(std::exchange(entry.handle, nullptr));
  }
  entry.state = State::kGone;
  entry.message = {};
  waiting_bytes_ -= entry.num_bytes;
  ++progress_.taken_messages;
  progress_.taken_bytes += entry.num_bytes;
}

// Moves both marks on: what is to be handed out next, and through which message everything is decided.
void Inbox::Settle() {
  while (!entries_.empty() && entries_.begin()->first == next_ && entries_.begin()->second.state == State::kGone) {
    entries_.erase(entries_.begin());
    ++next_;
  }
  progress_.through = std::max(progress_.through, next_ - 1);
  for (auto entry = entries_.find(progress_.through + 1); entry != entries_.end(); ++entry) {
    const bool decided = entry->second.state != State::kAnnounced && entry->second.state != State::kFetching;
    if (entry->first != progress_.through + 1 || !decided) {
      break;
    }
    ++progress_.through;
  }
}

}  // namespace kvant::transport
