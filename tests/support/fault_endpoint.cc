#include "support/fault_endpoint.h"

#include <cstring>
#include <thread>

namespace kvant::test {
namespace {

Buffer Copy(const Buffer& message, size_t num_bytes) {
  Buffer copy = Buffer::Allocate(num_bytes).value();
  std::memset(copy.bytes().data(), 0, num_bytes);
  std::memcpy(copy.bytes().data(), message.bytes().data(), std::min(num_bytes, message.size()));
  return copy;
}

size_t Place(const Fault& fault, size_t num_bytes) {
  const auto place = static_cast<size_t>(fault.where * static_cast<double>(num_bytes));
  return std::min(place, num_bytes - 1);
}

}  // namespace

Result<Buffer> FaultEndpoint::Receive(uint64_t max_bytes, transport::Deadline deadline) {
  if (held_) {
    Buffer message = std::move(*held_);
    held_.reset();
    return message;
  }
  Result<Buffer> message = inner_->Receive(max_bytes, deadline);
  if (!message.ok() || num_received_++ != fault_.message) {
    return message;
  }
  has_struck_ = true;
  return Strike(std::move(message).value(), max_bytes, deadline);
}

Result<Buffer> FaultEndpoint::Strike(Buffer message, uint64_t max_bytes, transport::Deadline deadline) {
  switch (fault_.kind) {
    case FaultKind::kDrop: return inner_->Receive(max_bytes, deadline);
    case FaultKind::kCut: return Copy(message, Place(fault_, message.size()));
    case FaultKind::kExtend: return Copy(message, message.size() + 1);
    case FaultKind::kFlip: message.bytes()[Place(fault_, message.size())] ^= std::byte{4}; return message;
    case FaultKind::kRepeat: held_ = Copy(message, message.size()); return message;
    case FaultKind::kSwap: {
      Result<Buffer> next = inner_->Receive(max_bytes, deadline);
      held_ = std::move(message);
      return next;
    }
    case FaultKind::kDelay: std::this_thread::sleep_for(fault_.delay); return message;
    case FaultKind::kClose: inner_->Close(); return Status(StatusCode::kTransportClosed, "cut off");
  }
  return message;
}

}  // namespace kvant::test
