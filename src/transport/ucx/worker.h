#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "kvant/base/status.h"
#include "kvant/transport/transport.h"

namespace kvant::transport {

/// "what: UCX's words for it".
Status UcxError(StatusCode code, const std::string& what, ucs_status_t status);

/// UCX with its devices and transports.
///
/// Threads  any number
class UcxContext {
 public:
  /// `loopback_only` opens no network device but the loopback.
  static Result<std::shared_ptr<UcxContext>> Create(bool loopback_only);
  ~UcxContext() { ucp_cleanup(context_); }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ucp_context_h get() const { return context_; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}
  ucp_context_h context_;
};

/// A UCX worker and what a thread sleeps on.
///
/// Threads  one at a time, but Wake from any
class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> Create(std::shared_ptr<UcxContext> context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  /// Run what is due, callbacks included. False when nothing was.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  /// Until something is due, somebody calls Wake, or `deadline`.
  void Sleep(Deadline deadline);
  void Wake();

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h worker) : context_(std::move(context)), worker_(worker) {}

  std::shared_ptr<UcxContext> context_;
  ucp_worker_h worker_;
  int events_ = -1;  // the worker's own
  int wake_ = -1;
};

}  // namespace kvant::transport
