#pragma once

#include <string>

#include "engine/gguf/gguf_architecture.h"
#include "engine/gguf/gguf_header.h"
#include "kvant/base/status.h"
#include "kvant/engine/gguf_check.h"

namespace kvant::engine {

/// The architecture a file names; kModelUnsupported with both names when the table does not have it.
Result<const ArchitectureRule*> ReadArchitecture(const GgufHeader& header);

/// Hyper-parameters: required ones there, all of the right type and in bounds, none that changes what is computed.
/// `vocab_size` is the tokenizer's.
Result<ModelParams> ReadModelParams(const GgufHeader& header, const ArchitectureRule& rule, uint32_t vocab_size);

/// Exactly the architecture's tensors, with the shapes that follow from `params`, of types ggml can compute with.
Status CheckModelTensors(const GgufHeader& header, const ArchitectureRule& rule, const ModelParams& params);

/// The type most matrices of the layers have.
std::string MainWeightType(const GgufHeader& header);

}  // namespace kvant::engine
