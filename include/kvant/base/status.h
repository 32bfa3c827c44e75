#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kvant/base/check.h"

namespace kvant {

/// Error codes. The numbers are stable for life: they cross the wire and appear in logs.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,       ///< the caller's value is not allowed
  kOutOfRange = 2,            ///< an index or length beyond what exists
  kCapacityExceeded = 3,      ///< it would not fit; the message has both sizes
  kCorruption = 4,            ///< bytes from outside contradict themselves or their checksum
  kVersionUnsupported = 5,    ///< a format version this build does not read
  kPrecisionUnsupported = 6,  ///< a precision word or codec this build does not have
  kModelUnsupported = 7,      ///< an architecture, shape or tensor type this build does not run
  kNumeric = 8,               ///< NaN or infinity where a number is needed
  kNotFound = 9,              ///< a file, model or peer that is not there
  kIoError = 10,              ///< the operating system refused
  kTransportClosed = 11,      ///< the peer is gone
  kTimeout = 12,              ///< a deadline passed
  kCancelled = 13,            ///< the caller asked to stop
  kOutOfMemory = 14,          ///< an allocation failed
  kMismatch = 15,             ///< two peers, or a peer and a file, do not belong together
  kInternal = 16,             ///< a fault of ours that could still be reported
};

/// The code's name in snake case ("invalid_argument"), for logs and JSON.
std::string_view StatusCodeName(StatusCode code);

/// Outcome of a call that returns no value.
///
/// Ensures  ok() exactly when code() == kOk; the message names the field, file or value at fault
/// Threads  a value type
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with "context: " before its message; ok stays ok.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }

/// A value, or the Status that says why there is none.
///
/// Requires value() only after ok(); breaking that is a fault of ours and aborts
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    KVANT_CHECK(!status_.ok(), "a Result made from a Status must hold an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    Require();
    return *value_;
  }
  const T& value() const& {
    Require();
    return *value_;
  }
  T&& value() && {
    Require();
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Require() const { KVANT_CHECK(value_.has_value(), "value() of a failed Result"); }

  std::optional<T> value_;
  Status status_;
};

}  // namespace kvant

#define KVANT_CONCAT_(a, b) a##b
#define KVANT_CONCAT(a, b) KVANT_CONCAT_(a, b)

/// Leave the function with the error, if `expression` (a Status) is one.
#define KVANT_RETURN_IF_ERROR(expression) KVANT_RETURN_IF_ERROR_IMPL_(KVANT_CONCAT(kvant_status_, __LINE__), expression)
#define KVANT_RETURN_IF_ERROR_IMPL_(status, expression)        \
  do {                                                         \
    if (::kvant::Status status = (expression); !status.ok()) { \
      return status;                                           \
    }                                                          \
  } while (false)

/// `KVANT_ASSIGN_OR_RETURN(auto x, F());` binds the value, or leaves the function with the error.
#define KVANT_ASSIGN_OR_RETURN(declaration, expression) \
  KVANT_ASSIGN_OR_RETURN_IMPL_(KVANT_CONCAT(kvant_result_, __LINE__), declaration, expression)
#define KVANT_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) {                                                 \
    return result.status();                                           \
  }                                                                   \
  declaration = std::move(result).value()
