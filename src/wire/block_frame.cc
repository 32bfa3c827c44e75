#include "kvant/wire/block_frame.h"

#include "wire/envelope.h"

namespace kvant::wire {

Buffer BlockFrame::Seal() && {
  SealFrame(buffer_.bytes());
  return std::move(buffer_);
}

}  // namespace kvant::wire
