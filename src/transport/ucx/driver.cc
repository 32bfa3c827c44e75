// The thread of a UcxEndpoint: everything that calls UCX, or is called by it.
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "transport/ucx/endpoint.h"

namespace kvant::transport {
namespace {

constexpr uint32_t kMagic = 0x5054564BU;  // "KVTP" as it lies in memory
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxEagerBytes = 8192;              // larger messages are announced
constexpr std::chrono::milliseconds kFarewell{500};  // for the peer's bye
constexpr std::chrono::seconds kLastRequests{2};     // for UCX to give buffers back

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

template <typename T>
T Read(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

template <UcxEndpoint::Kind kind>
Status UcxEndpoint::Listen() {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = static_cast<unsigned>(kind);
  param.cb = OnActive<kind>;
  param.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->get(), &param);
  return status == UCS_OK ? OkStatus() : UcxError(StatusCode::kIoError, "UCX takes no handler", status);
}

Status UcxEndpoint::Connect(ucp_ep_params_t params) {
  KVANT_RETURN_IF_ERROR(Listen<Kind::kGreeting>());
  KVANT_RETURN_IF_ERROR(Listen<Kind::kMessage>());
  KVANT_RETURN_IF_ERROR(Listen<Kind::kProgress>());
  KVANT_RETURN_IF_ERROR(Listen<Kind::kRevoke>());
  KVANT_RETURN_IF_ERROR(Listen<Kind::kBye>());
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnError;
  params.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker_->get(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return UcxError(StatusCode::kTransportClosed, "cannot connect", status);
  }
  thread_ = std::thread([this] { Drive(); });
  return OkStatus();
}

void UcxEndpoint::Drive() {
  SendControl(Kind::kGreeting, Greeting{kMagic, kVersion, options_.max_queued_bytes});
  while (true) {
    Chores chores = Collect();
    const Deadline next = chores.next;
    const bool idle = chores.empty();
    Do(std::move(chores));
    if (IsClosed()) {
      break;
    }
    if (!worker_->Progress() && idle) {
      worker_->Sleep(next);
    }
  }
  Leave();
}

bool UcxEndpoint::IsClosed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

UcxEndpoint::Chores UcxEndpoint::Collect() {
  const std::lock_guard lock(mutex_);
  Chores chores;
  outbox_.Advance(Clock::now());
  while (outbox_.has_ready()) {
    chores.outgoing.push_back(outbox_.TakeReady());
  }
  chores.revoked = outbox_.TakeRevoked();
  while (const auto fetch = inbox_.NextFetch()) {
    chores.fetches.push_back(*fetch);
  }
  chores.released = inbox_.TakeReleased();
  chores.progress = inbox_.TakeProgress();
  chores.next = outbox_.NextEvent().value_or(Deadline::max());
  if (outbox_.has_completion()) {
    changed_.notify_all();
  }
  return chores;
}

void UcxEndpoint::Do(Chores chores) {
  for (const Inbox::Handle handle : chores.released) {
    ucp_am_data_release(worker_->get(), handle);
  }
  for (const Inbox::Fetch& fetch : chores.fetches) {
    Fetch(fetch);
  }
  for (Outgoing& outgoing : chores.outgoing) {
    SendActive(Kind::kMessage, BytesOf(outgoing.sequence), std::move(outgoing.message));
  }
  for (const uint64_t sequence : chores.revoked) {
    SendControl(Kind::kRevoke, sequence);
  }
  if (chores.progress) {
    SendControl(Kind::kProgress, *chores.progress);
  }
}

// Last words, so that the peer learns of what has arrived here before the connection breaks; then the end of everything
// that UCX still holds.
void UcxEndpoint::Leave() {
  Do(Collect());
  SendControl(Kind::kBye, uint64_t{0});
  const auto wait = [&](Deadline deadline, auto&& done) {
    while (!done() && Clock::now() < deadline) {
      if (!worker_->Progress()) {
        worker_->Sleep(deadline);
      }
    }
  };
  wait(After(kFarewell), [&] {
    const std::lock_guard lock(mutex_);
    return failed_ || (peer_left_ && sends_.empty());
  });
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* closing = ucp_ep_close_nbx(endpoint_, &param);
  const auto is_closed = [&] {
    return !UCS_PTR_IS_PTR(closing) || ucp_request_check_status(closing) != UCS_INPROGRESS;
  };
  wait(After(kLastRequests), [&] { return is_closed() && sends_.empty() && fetching_.empty(); });
  if (UCS_PTR_IS_PTR(closing)) {
    ucp_request_free(closing);
  }
}

template <typename Header>
void UcxEndpoint::SendControl(Kind kind, const Header& header) {
  static_assert(sizeof(Header) <= sizeof(Send::header));
  SendActive(kind, BytesOf(header), {});
}

void UcxEndpoint::SendActive(Kind kind, std::span<const std::byte> header, Buffer message) {
  if (const std::lock_guard lock(mutex_); failed_) {
    return;
  }
  Send& send = sends_.emplace_back(Send{this, {}, std::move(message), {}});
  send.self = std::prev(sends_.end());
  std::memcpy(send.header.data(), header.data(), header.size());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = send.message.size() > kMaxEagerBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = OnSent;
  param.user_data = &send;
  const std::span<const std::byte> data = std::as_const(send.message).bytes();
  void* request = ucp_am_send_nbx(endpoint_, static_cast<unsigned>(kind), send.header.data(), header.size(),
                                  data.data(), data.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) {  // it has ended already
    sends_.erase(send.self);
    if (UCS_PTR_IS_ERR(request)) {
      Fail("cannot send", UCS_PTR_STATUS(request));
    }
  }
}

void UcxEndpoint::Fetch(const Inbox::Fetch& fetch) {
  Result<Buffer> memory = Buffer::Allocate(fetch.num_bytes);
  if (!memory.ok()) {
    ucp_am_data_release(worker_->get(), fetch.handle);
    const std::lock_guard lock(mutex_);
    inbox_.Finish(fetch.sequence, memory.status());
    changed_.notify_all();
    return;
  }
  Fetching& fetching = fetching_.emplace_back(Fetching{this, fetch.sequence, std::move(memory).value(), {}});
  fetching.self = std::prev(fetching_.end());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = OnFetched;
  param.user_data = &fetching;
  void* request = ucp_am_recv_data_nbx(worker_->get(), fetch.handle, fetching.message.bytes().data(),
                                       fetching.message.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) {  // it has ended already
    OnFetched(nullptr, UCS_PTR_STATUS(request), fetch.num_bytes, &fetching);
  }
}

void UcxEndpoint::OnSent(void* request, ucs_status_t status, void* argument) {
  Send& send = *static_cast<Send*>(argument);
  UcxEndpoint& owner = *send.owner;
  owner.sends_.erase(send.self);
  ucp_request_free(request);
  if (status != UCS_OK) {
    owner.Fail("cannot send", status);
  }
}

void UcxEndpoint::OnFetched(void* request, ucs_status_t status, size_t num_bytes, void* argument) {
  Fetching& fetching = *static_cast<Fetching*>(argument);
  UcxEndpoint& owner = *fetching.owner;
  const bool whole = status == UCS_OK && num_bytes == fetching.message.size();
  if (whole) {
    const std::lock_guard lock(owner.mutex_);
    owner.inbox_.Finish(fetching.sequence, std::move(fetching.message));
    owner.changed_.notify_all();
  }
  owner.fetching_.erase(fetching.self);
  if (request != nullptr) {
    ucp_request_free(request);
  }
  if (!whole) {
    owner.Fail("cannot fetch a message", status);
  }
}

void UcxEndpoint::OnError(void* argument, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  static_cast<UcxEndpoint*>(argument)->Fail("the connection broke", status);
}

void UcxEndpoint::Fail(const std::string& what, ucs_status_t status) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  End(what + ": " + ucs_status_string(status));
}

void UcxEndpoint::Violated(const std::string& how) {
  const std::lock_guard lock(mutex_);
  End("the peer does not keep to the protocol: " + how);
}

template <UcxEndpoint::Kind kind>
ucs_status_t UcxEndpoint::OnActive(void* argument, const void* header, size_t header_bytes, void* data,
                                   size_t num_bytes, const ucp_am_recv_param_t* param) {
  UcxEndpoint& owner = *static_cast<UcxEndpoint*>(argument);
  const std::span bytes(static_cast<const std::byte*>(header), header_bytes);
  constexpr size_t kExpected = kind == Kind::kGreeting   ? sizeof(Greeting)
                               : kind == Kind::kProgress ? sizeof(Progress)
                                                         : sizeof(uint64_t);
  if (header_bytes != kExpected) {
    owner.Violated("a header of " + std::to_string(header_bytes) + " bytes");
  } else if constexpr (kind == Kind::kMessage) {
    return owner.TakeMessage(bytes, data, num_bytes, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  } else {
    owner.TakeControl(kind, bytes);
  }
  return UCS_OK;
}

ucs_status_t UcxEndpoint::TakeMessage(std::span<const std::byte> header, void* data, size_t num_bytes, bool announced) {
  const auto sequence = Read<uint64_t>(header);
  const std::unique_lock lock(mutex_);
  if (closed_ || !greeted_) {
    return UCS_OK;  // dropped
  }
  bool admitted = false;
  if (announced) {
    admitted = inbox_.Announce(sequence, num_bytes, data);
  } else if (Result<Buffer> copy = Buffer::Allocate(num_bytes); copy.ok()) {
    std::memcpy(copy->bytes().data(), data, num_bytes);
    admitted = inbox_.Arrive(sequence, std::move(copy).value());
  }
  if (!admitted) {
    End("the peer does not keep to the protocol: message " + std::to_string(sequence) + " of " +
        std::to_string(num_bytes) + " bytes has no room here");
    return UCS_OK;
  }
  changed_.notify_all();
  return announced ? UCS_INPROGRESS : UCS_OK;
}

void UcxEndpoint::TakeControl(Kind kind, std::span<const std::byte> header) {
  if (kind == Kind::kGreeting) {
    return TakeGreeting(Read<Greeting>(header));
  }
  const std::lock_guard lock(mutex_);
  if (kind == Kind::kProgress && !outbox_.Take(Read<Progress>(header), Clock::now())) {
    End("the peer does not keep to the protocol: it claims what was not sent");
  } else if (kind == Kind::kRevoke) {
    inbox_.Revoke(Read<uint64_t>(header));
  } else if (kind == Kind::kBye) {
    peer_left_ = true;
    End("the peer closed the connection");
  }
  changed_.notify_all();
}

void UcxEndpoint::TakeGreeting(const Greeting& greeting) {
  const std::lock_guard lock(mutex_);
  if (greeting.magic != kMagic || greeted_ || greeting.max_queued_bytes == 0) {
    return End("the peer does not keep to the protocol: its greeting");
  }
  if (greeting.version != kVersion) {
    refusal_ = {StatusCode::kVersionUnsupported, "the peer's transport has version " +
                                                     std::to_string(greeting.version) + ", this one " +
                                                     std::to_string(kVersion)};
    return End(refusal_.message());
  }
  outbox_.Limit(greeting.max_queued_bytes);
  greeted_ = true;
  changed_.notify_all();
}

}  // namespace kvant::transport
