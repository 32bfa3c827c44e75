#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvant/base/status.h"

namespace kvant::cli {

/// One way to hold a sequence and decode it further.
class DecodeArm {
 public:
  virtual ~DecodeArm() = default;

  virtual std::string name() const = 0;
  /// Forget what there is and run a prompt.
  virtual Status Prefill(std::span<const int32_t> prompt) = 0;
  /// One token more.
  virtual Status Step(int32_t token) = 0;
  /// After the last token; valid until the next call.
  virtual std::span<const float> logits() const = 0;
  /// Bytes of keys and values that the next step reads.
  virtual uint64_t kv_bytes() const = 0;
};

}  // namespace kvant::cli
