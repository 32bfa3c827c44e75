#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "kvant/transport/transport.h"
#include "kvant/wire/frame.h"

namespace kvant::transfer {

/// How long a wait may last. A wait beyond that ends the session with kTimeout.
struct Timeouts {
  /// For the hello, and for its reply.
  std::chrono::milliseconds handshake{30'000};
  /// For everything else: a message delivered, the next one received. The sender computes a whole layer in between.
  std::chrono::milliseconds message{300'000};
};

/// Bytes of whole frames, by kind; messages that are no readable frame count as FrameType{}.
class FrameBytes {
 public:
  void Add(wire::FrameType type, uint64_t num_bytes) { bytes_[static_cast<size_t>(type)] += num_bytes; }
  uint64_t of(wire::FrameType type) const { return bytes_[static_cast<size_t>(type)]; }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t bytes : bytes_) {
      sum += bytes;
    }
    return sum;
  }

 private:
  std::array<uint64_t, wire::kFrameTypeNumbers> bytes_{};
};

/// What a session moved, seen from one side.
///
/// Ensures  sent.total() and received.total() are what the endpoint counted, if the session had it alone
struct TransferReport {
  FrameBytes sent;  ///< delivered to the peer
  FrameBytes received;
  uint32_t num_layers = 0;                 ///< sent, or adopted
  uint64_t kv_bytes_fp16 = 0;              ///< what the KV of the same tokens and layers takes at fp16, without headers
  transport::Clock::time_point started{};  ///< of the hello
  transport::Clock::time_point last_message{};  ///< delivered or received
};

}  // namespace kvant::transfer
