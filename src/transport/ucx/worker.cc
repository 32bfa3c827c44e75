#include "transport/ucx/worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <mutex>

namespace kvant::transport {
namespace {

// UCX prints its complaints on standard output, where results belong; what went wrong comes back as a status anyway.
// What somebody asks for with UCX_LOG_LEVEL is printed.
ucs_log_func_rc_t DropComplaint(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                                ucs_log_level_t level, const ucs_log_component_config_t* /*component*/,
                                const char* /*message*/, va_list /*arguments*/) {
  return level <= UCS_LOG_LEVEL_DIAG ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

// When it is loaded, UCX takes over the signals of a crash in every process that links it.
bool QuietUcx() {
  ucs_log_push_handler(DropComplaint);
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
    ucs_debug_disable_signal(signal);
  }
  return true;
}
const bool g_quiet = QuietUcx();

ucs_status_t DropMessage(void* /*argument*/, const void* /*header*/, size_t /*header_bytes*/, void* /*data*/,
                         size_t /*num_bytes*/, const ucp_am_recv_param_t* /*param*/) {
  return UCS_OK;
}

// UCX 1.13 calls what stands in its table at the number that a peer says, without looking whether the table is that
// long: so it is, and every place is taken.
ucs_status_t TakeEveryNumber(ucp_worker_h worker) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
  param.cb = DropMessage;
  ucs_status_t status = UCS_OK;
  for (unsigned left = unsigned{UINT16_MAX} + 1; left > 0 && status == UCS_OK; --left) {  // the longest first
    param.id = left - 1;
    status = ucp_worker_set_am_recv_handler(worker, &param);
  }
  return status;
}

int MillisecondsUntil(Deadline deadline) {
  if (deadline == Deadline::max()) {
    return -1;
  }
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(rest, 0, std::numeric_limits<int>::max()));
}

}  // namespace

Status UcxError(StatusCode code, const std::string& what, ucs_status_t status) {
  return {code, what + ": " + ucs_status_string(status)};
}

// Puts over TCP are slow, and an assertion of 1.13.1 ends the process where a connection breaks among them. And a
// worker that is started again takes its port although connections of the last one still linger there. Only its
// environment tells UCX so: ucp_config_modify takes the names and does nothing.
static void SetDefaults() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("UCX_TCP_PUT_ENABLE", "n", /*overwrite=*/0);
    setenv("UCX_TCP_CM_REUSEADDR", "y", /*overwrite=*/0);
  });
}

Result<std::shared_ptr<UcxContext>> UcxContext::Create(bool loopback_only) {
  SetDefaults();
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) {
    return UcxError(StatusCode::kInvalidArgument, "the UCX_ variables of the environment", status);
  }
  const std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)> owner(config, ucp_config_release);
  if (loopback_only) {
    status = ucp_config_modify(config, "NET_DEVICES", "lo");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  if (status == UCS_OK) {
    status = ucp_init(&params, config, &context);
  }
  if (status != UCS_OK) {
    return UcxError(StatusCode::kIoError, "UCX does not start", status);
  }
  return std::shared_ptr<UcxContext>(new UcxContext(context));
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::Create(std::shared_ptr<UcxContext> context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h handle = nullptr;
  ucs_status_t status = ucp_worker_create(context->get(), &params, &handle);
  if (status != UCS_OK) {
    return UcxError(StatusCode::kIoError, "UCX gives no worker", status);
  }
  std::unique_ptr<UcxWorker> worker(new UcxWorker(std::move(context), handle));
  status = TakeEveryNumber(handle);
  if (status != UCS_OK) {
    return UcxError(StatusCode::kIoError, "UCX takes no handlers", status);
  }
  status = ucp_worker_get_efd(handle, &worker->events_);
  worker->wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (status != UCS_OK || worker->wake_ < 0) {
    return UcxError(StatusCode::kIoError, "UCX gives no events to sleep on", status);
  }
  return worker;
}

UcxWorker::~UcxWorker() {
  ucp_worker_destroy(worker_);
  if (wake_ >= 0) {
    close(wake_);
  }
}

void UcxWorker::Sleep(Deadline deadline) {
  if (ucp_worker_arm(worker_) == UCS_ERR_BUSY) {
    return;  // something came in between
  }
  pollfd fds[] = {{events_, POLLIN, 0}, {wake_, POLLIN, 0}};
  poll(fds, std::size(fds), MillisecondsUntil(deadline));
  uint64_t count = 0;
  static_cast<void>(!read(wake_, &count, sizeof(count)));  // nothing to read: it was not woken by us
}

void UcxWorker::Wake() {
  const uint64_t one = 1;
  static_cast<void>(!write(wake_, &one, sizeof(one)));  // full: it is awake already
}

}  // namespace kvant::transport
