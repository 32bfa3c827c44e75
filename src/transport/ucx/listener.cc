#include <cmath>
#include <deque>
#include <utility>

#include "kvant/transport/ucx.h"
#include "transport/address.h"
#include "transport/ucx/endpoint.h"

namespace kvant::transport {
namespace {

constexpr size_t kMaxWaiting = 16;

Status CheckOptions(const UcxOptions& options) {
  if (!std::isfinite(options.gigabits_per_second) || options.gigabits_per_second < 0) {
    return {StatusCode::kInvalidArgument, "gigabits_per_second must be 0 or more"};
  }
  if (options.max_queued_bytes == 0) {
    return {StatusCode::kInvalidArgument, "max_queued_bytes must be at least 1"};
  }
  return OkStatus();
}

class Listener final : public UcxListener {
 public:
  Listener(std::shared_ptr<UcxContext> context, std::unique_ptr<UcxWorker> worker, const UcxOptions& options)
      : context_(std::move(context)), worker_(std::move(worker)), options_(options) {}

  ~Listener() override {
    for (const ucp_conn_request_h request : waiting_) {
      ucp_listener_reject(listener_, request);
    }
    if (listener_ != nullptr) {
      ucp_listener_destroy(listener_);
    }
  }

  Status Open(const Address& address) {
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = {address.get(), address.length};
    params.conn_handler = {OnConnection, this};
    ucs_status_t status = ucp_listener_create(worker_->get(), &params, &listener_);
    if (status != UCS_OK) {
      listener_ = nullptr;
      return UcxError(StatusCode::kIoError, "cannot listen on " + address.text(), status);
    }
    ucp_listener_attr_t attributes{};
    attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    status = ucp_listener_query(listener_, &attributes);
    if (status != UCS_OK) {
      return UcxError(StatusCode::kIoError, "cannot tell the address", status);
    }
    address_ = Address{attributes.sockaddr, address.length}.text();
    return OkStatus();
  }

  const std::string& address() const override { return address_; }

  Result<std::unique_ptr<Endpoint>> Accept(Deadline deadline) override {
    while (waiting_.empty()) {
      if (worker_->Progress()) {
        continue;
      }
      if (Clock::now() >= deadline) {
        return Status(StatusCode::kTimeout, "nobody connected by the deadline");
      }
      worker_->Sleep(deadline);
    }
    const ucp_conn_request_h request = waiting_.front();
    waiting_.pop_front();
    Result<std::unique_ptr<UcxWorker>> worker = UcxWorker::Create(context_);
    if (!worker.ok()) {
      ucp_listener_reject(listener_, request);
      return worker.status();
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    auto endpoint = UcxEndpoint::Open(std::move(worker).value(), params, options_, After(options_.greeting));
    if (endpoint.status().code() == StatusCode::kTimeout) {
      return Status(StatusCode::kTransportClosed, "a connection said nothing that is ours");
    }
    return endpoint;
  }

 private:
  static void OnConnection(ucp_conn_request_h request, void* argument) {
    Listener& owner = *static_cast<Listener*>(argument);
    if (owner.waiting_.size() < kMaxWaiting) {
      owner.waiting_.push_back(request);
    } else {
      ucp_listener_reject(owner.listener_, request);
    }
  }

  const std::shared_ptr<UcxContext> context_;
  const std::unique_ptr<UcxWorker> worker_;
  const UcxOptions options_;
  ucp_listener_h listener_ = nullptr;
  std::deque<ucp_conn_request_h> waiting_;
  std::string address_;
};

}  // namespace

bool HasUcx() { return true; }

Result<bool> IsLoopbackAddress(const std::string& address) {
  KVANT_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  return parsed.is_loopback();
}

Result<std::unique_ptr<UcxListener>> UcxListener::Listen(const std::string& address, const UcxOptions& options) {
  KVANT_RETURN_IF_ERROR(CheckOptions(options));
  KVANT_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  KVANT_ASSIGN_OR_RETURN(std::shared_ptr<UcxContext> context, UcxContext::Create(parsed.is_loopback()));
  KVANT_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(context));
  auto listener = std::make_unique<Listener>(std::move(context), std::move(worker), options);
  KVANT_RETURN_IF_ERROR(listener->Open(parsed));
  return std::unique_ptr<UcxListener>(std::move(listener));
}

Result<std::unique_ptr<Endpoint>> ConnectUcx(const std::string& address, Deadline deadline, const UcxOptions& options) {
  KVANT_RETURN_IF_ERROR(CheckOptions(options));
  KVANT_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  KVANT_ASSIGN_OR_RETURN(std::shared_ptr<UcxContext> context, UcxContext::Create(parsed.is_loopback()));
  KVANT_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(std::move(context)));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {parsed.get(), parsed.length};
  auto endpoint = UcxEndpoint::Open(std::move(worker), params, options, deadline);
  return endpoint.ok() ? std::move(endpoint)
                       : Result<std::unique_ptr<Endpoint>>(endpoint.status().WithContext(parsed.text()));
}

}  // namespace kvant::transport
