#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvant/base/status.h"
#include "kvant/transport/transport.h"

namespace kvant::transport {

/// Endpoints of two processes, over UCX active messages: TCP or RDMA, as UCX chooses (its own variables, UCX_TLS and
/// UCX_NET_DEVICES, are read by UCX itself). Not shared memory: UCX 1.13 has none that notices a dead peer.
///
/// A message beyond 8 KiB is announced, and its bytes are fetched into memory of the receiver's only when a Receive of
/// at least that size has been made, so a peer cannot make this side allocate. Nothing is encrypted.
///
/// Addresses are "HOST:PORT", "[IPv6]:PORT", ":PORT" or "PORT"; without a host it is 127.0.0.1. On an address of this
/// machine alone, UCX is kept to its loopback device, so no other interface is opened.
struct UcxOptions {
  /// Rate at which this end sends, in 10^9 bits a second; 0 is no limit. A message leaves when, at this rate, its last
  /// bit would have.
  double gigabits_per_second = 0;
  /// Bytes that one end may have posted and the other not yet received; the smaller number of both ends counts.
  uint64_t max_queued_bytes = uint64_t{64} << 20;
  /// How long an accepted connection may take to say that it is one of ours.
  std::chrono::milliseconds greeting{5000};
};

/// Whether this build has UCX. Without it, everything below fails with kNotFound and says so.
bool HasUcx();

/// Whether an address, in the form above, is reachable from this machine alone.
/// Errors  kInvalidArgument: not of that form; kNotFound: no such host
Result<bool> IsLoopbackAddress(const std::string& address);

/// Waits for connections.
///
/// Threads  one
class UcxListener {
 public:
  /// Port 0 takes a free one.
  /// Errors  kInvalidArgument: the address or an option; kNotFound: no such host; kIoError: the address is taken, or
  ///         not this machine's
  static Result<std::unique_ptr<UcxListener>> Listen(const std::string& address, const UcxOptions& options = {});
  virtual ~UcxListener() = default;  ///< refuses who still waits; accepted endpoints live on

  /// The address with the port that was taken.
  virtual const std::string& address() const = 0;

  /// The next connection. Those that come meanwhile wait, sixteen at most.
  /// Errors  kTimeout: nobody came by `deadline`; else somebody came and it failed, and the next one may be accepted
  virtual Result<std::unique_ptr<Endpoint>> Accept(Deadline deadline) = 0;
};

/// Errors  kInvalidArgument, kNotFound as above; kTimeout: no answer (a listener may be busy with another session);
///         kTransportClosed: refused; kVersionUnsupported: a peer of another version
Result<std::unique_ptr<Endpoint>> ConnectUcx(const std::string& address, Deadline deadline,
                                             const UcxOptions& options = {});

}  // namespace kvant::transport
