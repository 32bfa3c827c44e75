#pragma once

#include <ggml.h>
#include <gguf.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::test {

struct FreeGguf {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
struct FreeGgml {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using GgufPtr = std::unique_ptr<gguf_context, FreeGguf>;
using GgmlPtr = std::unique_ptr<ggml_context, FreeGgml>;

/// Writes a GGUF file of f32 tensors, one at a time: metadata first, then Add in the order of Declare.
class GgufWriter {
 public:
  GgufWriter();

  gguf_context* metadata() { return metadata_.get(); }

  /// shape[0] is the length of a row. All tensors are declared before the first value is made.
  void Declare(const std::string& name, std::span<const int64_t> shape);

  /// Calls `values(name, destination, row length)` for each tensor and writes what it leaves there.
  using Fill = std::function<Status(const std::string& name, std::span<float> values, size_t columns)>;
  Status Write(const std::string& path, const Fill& fill);

 private:
  GgufPtr metadata_;
  std::vector<GgmlPtr> holders_;  // one small context a tensor: their number is not known before
  std::vector<ggml_tensor*> tensors_;
};

}  // namespace kvant::test
