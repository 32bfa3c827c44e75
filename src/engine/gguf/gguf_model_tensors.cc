#include <algorithm>
#include <map>
#include <vector>

#include "engine/gguf/concat.h"
#include "engine/gguf/gguf_model.h"
#include "engine/gguf/gguf_tensors.h"

namespace kvant::engine {
namespace {

uint64_t Extent(TensorDim dim, const ModelParams& params) {
  switch (dim) {
    case TensorDim::kOne: return 1;
    case TensorDim::kEmbedding: return params.embedding;
    case TensorDim::kFeedForward: return params.feed_forward;
    case TensorDim::kFeedForwardTwice: return uint64_t{2} * params.feed_forward;
    case TensorDim::kHeadDim: return params.head_dim;
    case TensorDim::kQueryRows: return uint64_t{params.num_q_heads} * params.head_dim;
    case TensorDim::kKvRows: return uint64_t{params.num_kv_heads} * params.head_dim;
    case TensorDim::kQkvRows: return (params.num_q_heads + uint64_t{2} * params.num_kv_heads) * params.head_dim;
    case TensorDim::kVocab: return params.vocab_size;
    case TensorDim::kRopePairs: return params.rope.dims / 2;
  }
  return 0;
}

std::string ShapeText(uint64_t columns, uint64_t rows) { return Concat("[", columns, ", ", rows, "]"); }

std::string Field(const GgufTensor& tensor) { return Concat("tensor '", tensor.name, "'"); }

Status Unsupported(const GgufTensor& tensor, std::string_view what) {
  return {StatusCode::kModelUnsupported, CorruptAt(Field(tensor), what, tensor.offset).message()};
}

Status CheckTensor(const GgufTensor& tensor, const TensorRule& rule, const ModelParams& params) {
  const uint64_t columns = Extent(rule.columns, params);
  const uint64_t rows = Extent(rule.rows, params);
  if (tensor.shape != std::array<uint64_t, 4>{columns, rows, 1, 1}) {
    const std::string beyond = tensor.shape[2] * tensor.shape[3] > 1 ? " and more dimensions" : "";
    return CorruptAt(Field(tensor),
                     Concat("shape ", ShapeText(tensor.shape[0], tensor.shape[1]), beyond,
                            ", the hyper-parameters ask for ", ShapeText(columns, rows)),
                     tensor.offset);
  }
  const bool vector = rule.rows == TensorDim::kOne;
  const bool usable = vector ? TensorTypeName(tensor.type) == "f32" : IsMatrixType(tensor.type);
  if (!usable) {
    const std::string what = Concat("type ", TensorTypeName(tensor.type), " cannot be used for a ",
                                    (vector ? "vector, only f32" : "matrix"));
    return Unsupported(tensor, what);
  }
  return OkStatus();
}

// One rule in every layer; marks what it found.
Status CheckTensorsOf(const GgufHeader& header, const TensorRule& wanted, const ModelParams& params,
                      std::vector<bool>& known) {
  for (uint32_t layer = 0; layer < (wanted.per_layer ? params.num_layers : 1); ++layer) {
    const std::string prefix = wanted.per_layer ? Concat("blk.", layer, ".") : "";
    const std::string name = prefix + std::string(wanted.name);
    const auto found = header.tensor_index.find(name);
    if (found != header.tensor_index.end()) {
      KVANT_RETURN_IF_ERROR(CheckTensor(header.tensors[found->second], wanted, params));
      known[found->second] = true;
    } else if (wanted.required) {
      return {StatusCode::kCorruption, Concat("tensor '", name, "' is missing")};
    }
  }
  return OkStatus();
}

Status UnknownTensor(const GgufTensor& tensor, const ArchitectureRule& rule, const ModelParams& params) {
  const std::string what = Concat("no part of a ", params.num_layers, "-layer model of architecture ", rule.name);
  return Unsupported(tensor, what);
}

}  // namespace

Status CheckModelTensors(const GgufHeader& header, const ArchitectureRule& rule, const ModelParams& params) {
  std::vector<bool> known(header.tensors.size(), false);
  for (const std::span<const TensorRule> part : rule.tensors) {
    for (const TensorRule& wanted : part) {
      KVANT_RETURN_IF_ERROR(CheckTensorsOf(header, wanted, params, known));
    }
  }
  const auto unknown = std::find(known.begin(), known.end(), false);
  return unknown == known.end() ? OkStatus() : UnknownTensor(header.tensors[unknown - known.begin()], rule, params);
}

std::string MainWeightType(const GgufHeader& header) {
  std::map<uint32_t, size_t> count;
  for (const GgufTensor& tensor : header.tensors) {
    count[tensor.type] += tensor.name.starts_with("blk.") && tensor.shape[1] > 1 ? 1 : 0;
  }
  const auto most =
      std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == count.end() ? "" : std::string(TensorTypeName(most->first));
}

}  // namespace kvant::engine
