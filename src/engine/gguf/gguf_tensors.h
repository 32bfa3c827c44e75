#pragma once

#include "engine/gguf/gguf_header.h"
#include "kvant/base/status.h"

namespace kvant::engine {

/// ggml maps tensor data in place and asserts that it starts at a multiple of this.
inline constexpr uint64_t kMinTensorAlignment = 32;

/// Read one tensor description: type known to this ggml, dimensions and size without overflow.
Result<GgufTensor> ReadTensor(GgufReader& reader);

/// Every tensor starts where the one before it ends, rounded up to the alignment, and ends inside the file.
Status CheckTensorRanges(const GgufHeader& header);

/// True for types ggml's CPU backend can both look rows up in and multiply with.
bool IsMatrixType(uint32_t type);

/// "f32", "q4_1".
std::string_view TensorTypeName(uint32_t type);

}  // namespace kvant::engine
