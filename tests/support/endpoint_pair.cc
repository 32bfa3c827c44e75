#include "support/endpoint_pair.h"

#include <thread>

#include "kvant/transport/loopback.h"
#include "kvant/transport/ucx.h"

namespace kvant::test {
namespace {

using transport::After;
constexpr std::chrono::seconds kLong{20};

EndpointPair ConnectByUcx(const transport::UcxOptions& options) {
  const auto listener = transport::UcxListener::Listen("0", options).value();
  EndpointPair pair;
  std::thread connecting(
      [&] { pair.first = transport::ConnectUcx(listener->address(), After(kLong), options).value(); });
  pair.second = listener->Accept(After(kLong)).value();
  connecting.join();
  return pair;
}

}  // namespace

std::vector<Carrier> Carriers() {
  return transport::HasUcx() ? std::vector{Carrier::kLoopback, Carrier::kUcx} : std::vector{Carrier::kLoopback};
}

std::string CarrierName(Carrier carrier) { return carrier == Carrier::kLoopback ? "Loopback" : "Ucx"; }

EndpointPair Connect(Carrier carrier, double gigabits_per_second, uint64_t max_queued_bytes) {
  if (carrier == Carrier::kLoopback) {
    transport::LoopbackPair pair = transport::MakeLoopback({gigabits_per_second, max_queued_bytes}).value();
    return {std::move(pair.first), std::move(pair.second)};
  }
  return ConnectByUcx({.gigabits_per_second = gigabits_per_second, .max_queued_bytes = max_queued_bytes});
}

}  // namespace kvant::test
