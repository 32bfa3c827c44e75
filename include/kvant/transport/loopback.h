#pragma once

#include <cstdint>
#include <memory>

#include "kvant/base/status.h"
#include "kvant/transport/transport.h"

namespace kvant::transport {

struct LoopbackOptions {
  /// Rate of each direction, in 10^9 bits a second; 0 is as fast as memory. Messages pass one after the other, each
  /// arriving when its last bit has; waiting costs no thread.
  double gigabits_per_second = 0;
  /// Bytes of one direction that may be posted and not yet received.
  uint64_t max_queued_bytes = uint64_t{64} << 20;
};

struct LoopbackPair {
  std::unique_ptr<Endpoint> first;
  std::unique_ptr<Endpoint> second;
};

/// Two endpoints of one process, connected. Messages move, they are not copied.
/// Errors  kInvalidArgument, naming the option
Result<LoopbackPair> MakeLoopback(const LoopbackOptions& options = {});

}  // namespace kvant::transport
