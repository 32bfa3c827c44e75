#pragma once

#include <functional>
#include <span>
#include <utility>

#include "kvant/transport/transport.h"

namespace kvant::transport {

/// Given every message just before it is posted. An error keeps it from being posted, and is what Post returns.
using Tap = std::function<Status(std::span<const std::byte> message)>;

/// An endpoint whose outgoing messages are shown to a tap: to save what is sent, as it is sent.
///
/// Threads  as the endpoint's; the tap is called by whoever posts
class TapEndpoint : public Endpoint {
 public:
  /// `inner` outlives it. Closing one closes the other; only destruction does not.
  TapEndpoint(Endpoint* inner, Tap tap) : inner_(inner), tap_(std::move(tap)) {}

  Status WaitForRoom(uint64_t num_bytes, Deadline deadline) override {
    return inner_->WaitForRoom(num_bytes, deadline);
  }
  Result<OperationId> Post(Buffer&& message, Deadline deadline) override {
    KVANT_RETURN_IF_ERROR(tap_(std::as_const(message).bytes()));
    return inner_->Post(std::move(message), deadline);
  }
  Result<Completion> Wait(Deadline deadline) override { return inner_->Wait(deadline); }
  Result<Buffer> Receive(uint64_t max_bytes, Deadline deadline) override {
    return inner_->Receive(max_bytes, deadline);
  }
  Status Cancel(OperationId id) override { return inner_->Cancel(id); }
  void Close() override { inner_->Close(); }
  Counters counters() const override { return inner_->counters(); }

 private:
  Endpoint* inner_;
  Tap tap_;
};

}  // namespace kvant::transport
