#include "kvant/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvant::internal {

void CheckFailed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "kvant: invariant broken at %s:%d: %s (%s)\n", file, line, condition, why);
  std::abort();
}

}  // namespace kvant::internal
