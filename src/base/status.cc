#include "kvant/base/status.h"

namespace kvant {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kOutOfRange: return "out_of_range";
    case StatusCode::kCapacityExceeded: return "capacity_exceeded";
    case StatusCode::kCorruption: return "corruption";
    case StatusCode::kVersionUnsupported: return "version_unsupported";
    case StatusCode::kPrecisionUnsupported: return "precision_unsupported";
    case StatusCode::kModelUnsupported: return "model_unsupported";
    case StatusCode::kNumeric: return "numeric";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kIoError: return "io_error";
    case StatusCode::kTransportClosed: return "transport_closed";
    case StatusCode::kTimeout: return "timeout";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kOutOfMemory: return "out_of_memory";
    case StatusCode::kMismatch: return "mismatch";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) {
    return *this;
  }
  return {code_, std::string(context) + ": " + message_};
}

}  // namespace kvant
