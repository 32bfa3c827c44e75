#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "kvant/transport/transport.h"

namespace kvant::test {

/// What goes wrong with one message on its way in.
enum class FaultKind : uint8_t { kDrop, kCut, kExtend, kFlip, kRepeat, kSwap, kDelay, kClose };

struct Fault {
  FaultKind kind{};
  uint64_t message = 0;                 ///< counted from 0
  double where = 0;                     ///< of the message, 0 … 1: the byte flipped, the first byte cut
  std::chrono::milliseconds delay{20};  ///< for kDelay
};

/// An endpoint that receives with a fault.
class FaultEndpoint : public transport::Endpoint {
 public:
  FaultEndpoint(std::unique_ptr<transport::Endpoint> inner, Fault fault) : inner_(std::move(inner)), fault_(fault) {}

  Status WaitForRoom(uint64_t num_bytes, transport::Deadline deadline) override {
    return inner_->WaitForRoom(num_bytes, deadline);
  }
  Result<transport::OperationId> Post(Buffer&& message, transport::Deadline deadline) override {
    return inner_->Post(std::move(message), deadline);
  }
  Result<transport::Completion> Wait(transport::Deadline deadline) override { return inner_->Wait(deadline); }
  Result<Buffer> Receive(uint64_t max_bytes, transport::Deadline deadline) override;
  Status Cancel(transport::OperationId id) override { return inner_->Cancel(id); }
  void Close() override { inner_->Close(); }
  transport::Counters counters() const override { return inner_->counters(); }

  bool has_struck() const { return has_struck_; }

 private:
  Result<Buffer> Strike(Buffer message, uint64_t max_bytes, transport::Deadline deadline);

  std::unique_ptr<transport::Endpoint> inner_;
  const Fault fault_;
  std::optional<Buffer> held_;  // to be received next
  uint64_t num_received_ = 0;
  bool has_struck_ = false;
};

}  // namespace kvant::test
