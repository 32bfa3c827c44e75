#pragma once

#include <array>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "kvant/transport/ucx.h"
#include "transport/inbox.h"
#include "transport/outbox.h"
#include "transport/ucx/worker.h"

namespace kvant::transport {

/// An endpoint over one UCX endpoint with a worker and a thread of its own. The thread makes all calls into UCX; the
/// others change the boxes and wake it.
///
/// Active messages, all little-endian, in their headers:
///   1 greeting  u32 magic, u32 version, u64 bytes that may be queued here
///   2 message   u64 sequence; the data is the message
///   3 progress  u64 through, u64 messages taken, u64 bytes taken (outbox.h)
///   4 revoke    u64 sequence
///   5 bye       nothing more will come
class UcxEndpoint final : public Endpoint {
 public:
  /// `params` say where to connect, or whom to accept.
  /// Errors  kTimeout: no greeting by `deadline`; kTransportClosed; kVersionUnsupported; kIoError
  static Result<std::unique_ptr<Endpoint>> Open(std::unique_ptr<UcxWorker> worker, ucp_ep_params_t params,
                                                const UcxOptions& options, Deadline deadline);
  ~UcxEndpoint() override;

  Status WaitForRoom(uint64_t num_bytes, Deadline deadline) override;
  Result<OperationId> Post(Buffer&& message, Deadline deadline) override;
  Result<Completion> Wait(Deadline deadline) override;
  Result<Buffer> Receive(uint64_t max_bytes, Deadline deadline) override;
  Status Cancel(OperationId id) override;
  void Close() override;
  Counters counters() const override;

 private:
  enum class Kind : uint8_t { kGreeting = 1, kMessage = 2, kProgress = 3, kRevoke = 4, kBye = 5 };
  struct Greeting {
    uint32_t magic;
    uint32_t version;
    uint64_t max_queued_bytes;
  };
  struct Send {
    UcxEndpoint* owner;
    std::array<std::byte, sizeof(Progress)> header;
    Buffer message;
    std::list<Send>::iterator self;
  };
  struct Fetching {
    UcxEndpoint* owner;
    uint64_t sequence;
    Buffer message;
    std::list<Fetching>::iterator self;
  };
  // What one round of the thread has to do in UCX.
  struct Chores {
    std::vector<Outgoing> outgoing;
    std::vector<uint64_t> revoked;
    std::vector<Inbox::Fetch> fetches;
    std::vector<Inbox::Handle> released;
    std::optional<Progress> progress;
    Deadline next = Deadline::max();
    bool empty() const {
      return outgoing.empty() && revoked.empty() && fetches.empty() && released.empty() && !progress;
    }
  };

  UcxEndpoint(std::unique_ptr<UcxWorker> worker, const UcxOptions& options);
  Status Connect(ucp_ep_params_t params);
  Status WaitForGreeting(Deadline deadline);

  Status Closed() const { return {StatusCode::kTransportClosed, reason_}; }
  template <typename Ready>
  bool WaitUntil(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready&& ready);
  // With the lock held. The first reason stays.
  void End(std::string reason);

  // The thread's own.
  void Drive();
  bool IsClosed();
  Chores Collect();
  void Do(Chores chores);
  void Leave();
  template <typename Header>
  void SendControl(Kind kind, const Header& header);
  void SendActive(Kind kind, std::span<const std::byte> header, Buffer message);
  void Fetch(const Inbox::Fetch& fetch);
  void Fail(const std::string& what, ucs_status_t status);
  void Violated(const std::string& how);
  ucs_status_t TakeMessage(std::span<const std::byte> header, void* data, size_t num_bytes, bool announced);
  void TakeControl(Kind kind, std::span<const std::byte> header);
  void TakeGreeting(const Greeting& greeting);

  template <Kind kind>
  static ucs_status_t OnActive(void* owner, const void* header, size_t header_bytes, void* data, size_t num_bytes,
                               const ucp_am_recv_param_t* param);
  template <Kind kind>
  Status Listen();
  static void OnSent(void* request, ucs_status_t status, void* send);
  static void OnFetched(void* request, ucs_status_t status, size_t num_bytes, void* fetching);
  static void OnError(void* owner, ucp_ep_h endpoint, ucs_status_t status);

  std::unique_ptr<UcxWorker> worker_;
  const UcxOptions options_;
  ucp_ep_h endpoint_ = nullptr;
  std::list<Send> sends_;         // in UCX's hands
  std::list<Fetching> fetching_;  // in UCX's hands

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Outbox outbox_;
  Inbox inbox_;
  bool greeted_ = false;
  bool closed_ = false;
  bool failed_ = false;  // nothing can be sent any more
  bool peer_left_ = false;
  std::string reason_;
  Status refusal_;  // of the greeting

  std::thread thread_;
};

}  // namespace kvant::transport
