#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/cache/sequence.h"
#include "kvant/kernels/cpu.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/transport.h"
#include "kvant/wire/messages.h"

namespace kvant::transfer {

/// What a receiver takes.
struct ReceiverOptions {
  wire::ModelIdentity model;
  std::optional<codec::Precision> precision;  ///< the only one taken; nothing: as received
  uint32_t max_context_tokens = 0;
  std::vector<uint32_t> windows;  ///< of the model's layers, 0: none; empty: none anywhere
  uint32_t WindowOf(uint32_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  kernels::Isa isa = kernels::Isa::kScalar;
  cache::MemoryAccount* account = nullptr;  ///< of the cache that is built; outlives it
  Timeouts timeouts;
  /// Called after each adopted layer, on the thread of Run. May be empty.
  std::function<void(uint32_t layers_done, uint32_t num_layers)> progress;
};

/// A prompt that arrived whole, verified.
struct Received {
  wire::Hello hello;
  wire::Finish finish;
  cache::Sequence sequence;  ///< holds the prompt; decoding goes on with finish.first_token
};

/// The decode side of one session.
///
/// Layers are adopted as they come, but the sequence is handed out only when all of it has been verified. On error it
/// is freed, the peer is told why, and the endpoint is closed.
///
/// Threads  Run on one, Cancel from any, report after Run
class Receiver {
 public:
  /// `endpoint` outlives the receiver and is used by nobody else meanwhile.
  Receiver(transport::Endpoint* endpoint, ReceiverOptions options);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// Take one session, from hello to done. May be called once.
  ///
  /// Errors  kMismatch with every differing field; kCapacityExceeded with both sizes; kPrecisionUnsupported;
  ///         kVersionUnsupported; kCorruption: a damaged frame, or one that does not belong here; kNumeric with the
  ///         layer; the peer's error; kTimeout, kTransportClosed, kCancelled
  Result<Received> Run();

  /// End the session within 20 ms, with kCancelled.
  void Cancel();

  const TransferReport& report() const;

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

}  // namespace kvant::transfer
