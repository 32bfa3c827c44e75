#include "kvant/transfer/report.h"

#include <algorithm>

namespace kvant::transfer {

void LineSpeed::Add(const transport::Completion& delivered) {
  // It may have waited behind the one before.
  const transport::Clock::time_point begin = std::max(delivered.posted, free_since_);
  const double seconds = std::max(std::chrono::duration<double>(delivered.finished - begin).count(), 1e-9);
  const auto bytes = static_cast<double>(delivered.num_bytes);
  bytes_ = bytes_ / 2 + bytes;
  seconds_ = seconds_ / 2 + seconds;
  all_bytes_ += bytes;
  all_seconds_ += seconds;
  free_since_ = delivered.finished;
}

}  // namespace kvant::transfer
