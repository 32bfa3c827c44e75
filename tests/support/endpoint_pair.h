#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvant/transport/transport.h"

namespace kvant::test {

/// What joins two endpoints of this process.
enum class Carrier : uint8_t { kLoopback, kUcx };

/// Those this build has.
std::vector<Carrier> Carriers();
std::string CarrierName(Carrier carrier);

struct EndpointPair {
  std::unique_ptr<transport::Endpoint> first;  ///< the connecting one
  std::unique_ptr<transport::Endpoint> second;
};

/// Two connected endpoints; the options are those of every transport.
EndpointPair Connect(Carrier carrier, double gigabits_per_second = 0, uint64_t max_queued_bytes = uint64_t{64} << 20);

}  // namespace kvant::test
