#include "support/gguf_fixture.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "support/gguf_writer.h"

namespace kvant::test {
namespace {

// A model file open for reading: ggml's view of its metadata and all tensor data in memory.
struct Source {
  GgufPtr metadata;
  GgmlPtr tensors;
};

Result<Source> OpenSource(const std::string& path) {
  ggml_context* tensors = nullptr;
  GgufPtr metadata(gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &tensors}));
  if (metadata == nullptr) {
    return Status(StatusCode::kIoError, "cannot read " + path);
  }
  return Source{std::move(metadata), GgmlPtr(tensors)};
}

Status ToFloats(const ggml_tensor* tensor, std::span<float> values) {
  if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(values.data(), tensor->data, values.size_bytes());
    return OkStatus();
  }
  const ggml_to_float_t to_float = ggml_get_type_traits(tensor->type)->to_float;
  if (to_float == nullptr) {
    return {StatusCode::kModelUnsupported, std::string("no floats from type ") + ggml_type_name(tensor->type)};
  }
  to_float(tensor->data, values.data(), static_cast<int64_t>(values.size()));
  return OkStatus();
}

void CopyMetadata(const Source& source, const std::string& name_suffix, gguf_context* out) {
  gguf_set_kv(out, source.metadata.get());
  gguf_set_val_u32(out, "general.file_type", 0);  // all f32
  const int64_t index = gguf_find_key(out, "general.name");
  const std::string name = index < 0 ? "" : gguf_get_val_str(out, index);
  if (!name_suffix.empty()) {
    gguf_set_val_str(out, "general.name", (name + name_suffix).c_str());
  }
}

uint32_t MetaU32(const gguf_context* metadata, const char* key) {
  const int64_t index = gguf_find_key(metadata, key);
  return index < 0 ? 0 : gguf_get_val_u32(metadata, index);
}

struct HeadShape {
  uint32_t num_layers = 0;
  uint32_t num_q_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
};

Result<HeadShape> ReadHeadShape(const std::string& path) {
  GgufPtr metadata(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
  if (metadata == nullptr) {
    return Status(StatusCode::kIoError, "cannot read " + path);
  }
  HeadShape shape;
  shape.num_layers = MetaU32(metadata.get(), "llama.block_count");
  shape.num_q_heads = MetaU32(metadata.get(), "llama.attention.head_count");
  shape.num_kv_heads = MetaU32(metadata.get(), "llama.attention.head_count_kv");
  if (shape.num_q_heads == 0 || shape.num_kv_heads == 0) {
    return Status(StatusCode::kModelUnsupported, path + ": no head counts of a llama model");
  }
  const uint32_t stated = MetaU32(metadata.get(), "llama.attention.key_length");
  shape.head_dim = stated > 0 ? stated : MetaU32(metadata.get(), "llama.embedding_length") / shape.num_q_heads;
  return shape;
}

bool IsChosen(std::string_view name, OutlierLayers layers, uint32_t num_layers) {
  if (!name.starts_with("blk.")) {
    return false;
  }
  const auto layer = static_cast<uint32_t>(std::strtoul(name.data() + 4, nullptr, 10));
  switch (layers) {
    case OutlierLayers::kAll: return true;
    case OutlierLayers::kMid: return layer == num_layers / 2;
    case OutlierLayers::kEnds: return layer == 0 || layer + 1 == num_layers;
  }
  return false;
}

struct OutlierEdit {
  OutlierParams params;
  HeadShape shape;

  // The pair's two channels of one head.
  size_t Channel(uint32_t head, size_t of_pair) const {
    return size_t{head} * shape.head_dim + 2 * size_t{params.pair} + of_pair;
  }

  void ScaleRows(std::span<float> values, size_t columns, uint32_t head, float factor) const {
    for (size_t i = 0; i < 2; ++i) {
      for (float& value : values.subspan(Channel(head, i) * columns, columns)) {
        value *= factor;
      }
    }
  }

  void ScaleColumns(std::span<float> values, size_t columns, uint32_t head, float factor) const {
    for (size_t row = 0; row < values.size() / columns; ++row) {
      values[row * columns + Channel(head, 0)] *= factor;
      values[row * columns + Channel(head, 1)] *= factor;
    }
  }

  void operator()(std::string_view name, std::span<float> values, size_t columns) const {
    if (!IsChosen(name, params.layers, shape.num_layers)) {
      return;
    }
    const uint32_t group = shape.num_q_heads / shape.num_kv_heads;
    if (name.ends_with("attn_k.weight") || (params.values && name.ends_with("attn_v.weight"))) {
      ScaleRows(values, columns, params.kv_head, params.scale);
    }
    for (uint32_t head = params.kv_head * group; head < (params.kv_head + 1) * group; ++head) {
      if (name.ends_with("attn_q.weight")) {
        ScaleRows(values, columns, head, 1.0F / params.scale);
      } else if (params.values && name.ends_with("attn_output.weight")) {
        ScaleColumns(values, columns, head, 1.0F / params.scale);
      }
    }
  }
};

}  // namespace

std::optional<std::string> FindTestModel() {
  std::string path;
  if (const char* stated = std::getenv("KVANT_TEST_MODEL"); stated != nullptr) {
    path = stated;
  } else if (const char* home = std::getenv("HOME"); home != nullptr) {
    path = std::string(home) + "/.local/share/kvant/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
}

Status WriteF32Model(const std::string& in, const std::string& out, const TensorEdit& edit,
                     const std::string& name_suffix) {
  KVANT_ASSIGN_OR_RETURN(const Source source, OpenSource(in));
  GgufWriter writer;
  CopyMetadata(source, name_suffix, writer.metadata());
  const int64_t num_tensors = gguf_get_n_tensors(source.metadata.get());
  for (int64_t i = 0; i < num_tensors; ++i) {
    const ggml_tensor* tensor = ggml_get_tensor(source.tensors.get(), gguf_get_tensor_name(source.metadata.get(), i));
    writer.Declare(tensor->name, std::span(tensor->ne, static_cast<size_t>(ggml_n_dims(tensor))));
  }
  return writer.Write(out, [&](const std::string& name, std::span<float> values, size_t columns) {
    KVANT_RETURN_IF_ERROR(ToFloats(ggml_get_tensor(source.tensors.get(), name.c_str()), values));
    if (edit) {
      edit(name, values, columns);
    }
    return OkStatus();
  });
}

Status WriteOutlierModel(const std::string& in, const std::string& out, const OutlierParams& params) {
  KVANT_ASSIGN_OR_RETURN(const HeadShape shape, ReadHeadShape(in));
  if (params.kv_head >= shape.num_kv_heads || params.pair >= shape.head_dim / 2 || params.scale <= 0.0F) {
    return {StatusCode::kInvalidArgument, "outlier: no such KV head or pair, or a scale that is not positive"};
  }
  const std::string suffix = " outlier s=" + std::to_string(params.scale) + (params.values ? " kv " : " k ") +
                             std::to_string(static_cast<int>(params.layers)) + "/" + std::to_string(params.kv_head) +
                             "/" + std::to_string(params.pair);
  return WriteF32Model(in, out, OutlierEdit{params, shape}, suffix);
}

}  // namespace kvant::test
