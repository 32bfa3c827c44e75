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

/// How fast a line was, by the messages it delivered: bytes, and the time in which it had some to carry. Later ones
/// count more in `bytes_per_second`, since a line's speed changes: each halves the weight of those before it.
class LineSpeed {
 public:
  void Add(const transport::Completion& delivered);

  /// 0 before the first.
  double bytes_per_second() const { return seconds_ > 0 ? bytes_ / seconds_ : 0; }
  /// The mean over everything, in 10^9 bits a second; 0 before the first.
  double mean_gbps() const { return all_seconds_ > 0 ? all_bytes_ * 8e-9 / all_seconds_ : 0; }
  /// When the line was last known to be free, or later.
  transport::Clock::time_point free_since() const { return free_since_; }

 private:
  double bytes_ = 0;
  double seconds_ = 0;
  double all_bytes_ = 0;
  double all_seconds_ = 0;
  transport::Clock::time_point free_since_{};
};

/// What is known of a line while messages are on it.
struct LineState {
  double bytes_per_second = 0;  ///< 0: nothing was sent yet
  uint64_t queued_bytes = 0;    ///< posted, and to be carried still
};

/// What a session moved, seen from one side.
///
/// Ensures  sent.total() and received.total() are what the endpoint counted, if the session had it alone
struct TransferReport {
  FrameBytes sent;  ///< delivered to the peer
  FrameBytes received;
  LineSpeed line;                          ///< by the layers, the only messages that fill it
  uint32_t num_layers = 0;                 ///< sent, or adopted
  uint64_t kv_bytes_fp16 = 0;              ///< what the KV of the same tokens and layers takes at fp16, without headers
  transport::Clock::time_point started{};  ///< of the hello
  transport::Clock::time_point last_message{};  ///< delivered or received
};

}  // namespace kvant::transfer
