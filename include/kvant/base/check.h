#pragma once

namespace kvant::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* why);
}  // namespace kvant::internal

/// A broken invariant of our own: print file, line, condition and reason, then abort.
/// Never for anything that came from outside the process; that is a Status.
#define KVANT_CHECK(condition, why)                                        \
  do {                                                                     \
    if (!(condition)) [[unlikely]] {                                       \
      ::kvant::internal::CheckFailed(__FILE__, __LINE__, #condition, why); \
    }                                                                      \
  } while (false)
