#pragma once

#include <cstdint>
#include <memory>

#include "kvant/base/status.h"
#include "kvant/base/thread_pool.h"
#include "kvant/cache/sequence.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/transport.h"
#include "kvant/wire/messages.h"

namespace kvant::transfer {

struct SenderOptions {
  uint64_t session = 1;  ///< told to the receiver; tells sessions of one sender apart
  codec::PromptTail tail = codec::PromptTail::kEncodeAll;
  /// Encoded frames that may wait for the line; the next layer is encoded when there is room again.
  uint64_t max_in_flight_bytes = uint64_t{256} << 20;
  Timeouts timeouts;
};

/// The prefill side of one session: Handshake, SendLayer for layers 0, 1, …, then Finish.
///
/// Layers leave while later ones are computed: SendLayer returns when its frame is encoded and posted.
/// The first error ends the session: the peer is told, what is in flight is taken back, the endpoint is closed, and
/// every later call returns that error. Dropping a sender before Finish has succeeded cancels the session.
///
/// Threads  one, but Cancel from any
class Sender {
 public:
  /// `endpoint` outlives the sender and is used by nobody else meanwhile.
  Sender(transport::Endpoint* endpoint, const SenderOptions& options);
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Announce what will come, and wait for the receiver's word.
  /// Errors  what the receiver refuses with: kMismatch, kCapacityExceeded, kPrecisionUnsupported, kVersionUnsupported;
  ///         kTimeout, kTransportClosed, kCancelled
  Status Handshake(const wire::Hello& hello);

  /// Encode one layer into a frame and post it. `pool` may be null; `tiers` goes with a spectrum, whose tokens beyond
  /// the sinks it gives to tiers.
  ///
  /// Requires all tokens of `cache` at fp16; it may be emptied as soon as this returns
  /// Errors   kInvalidArgument: not the next layer, or not the tokens, shape and precision of the hello;
  ///          the peer's error; kTimeout, kTransportClosed, kCancelled, kOutOfMemory
  Status SendLayer(uint32_t layer, const cache::LayerCache& cache, ThreadPool* pool,
                   const codec::TierMap* tiers = nullptr);

  /// Send the rest, wait until everything has arrived and the receiver has adopted it.
  /// Errors  kInvalidArgument: layers are missing, or tokens and position are not the hello's; kMismatch: the receiver
  ///         counted other bytes; as SendLayer
  Status Finish(const wire::Finish& finish);

  /// What is known of the line while layers are on it. Waits until the first one is delivered: later ones would only
  /// queue behind it.
  /// Errors  as SendLayer
  Result<LineState> MeasureLine();

  /// End the session because of an error of the caller's own, which the peer is told.
  void Abort(const Status& why);

  /// End the session at the next call, or within 20 ms of a waiting one, with kCancelled.
  void Cancel();

  const TransferReport& report() const;

 private:
  struct Session;
  std::unique_ptr<Session> session_;
};

}  // namespace kvant::transfer
