#include "kvant/engine/model.h"

#include <fcntl.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvant/base/check.h"
#include "kvant/base/hash.h"
#include "kvant/engine/backend.h"

namespace kvant::engine {

// The file in memory, and ggml's view of its tensors.
struct Model::Mapping {
  void* memory = MAP_FAILED;
  size_t bytes = 0;
  ggml_context* tensors = nullptr;
  ggml_context* views = nullptr;  // row ranges of fused matrices
  ggml_backend_buffer_t buffer = nullptr;

  ~Mapping() {
    ggml_backend_buffer_free(buffer);
    ggml_free(views);
    ggml_free(tensors);
    if (memory != MAP_FAILED) {
      munmap(memory, bytes);
    }
  }
};

namespace {

Status MapFile(const std::string& path, void** memory, size_t* bytes) {
  const auto failed = [&](const char* what) {
    return Status(StatusCode::kIoError, std::string("cannot ") + what + " " + path + ": " + std::strerror(errno));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return failed("open");
  }
  const off_t end = lseek(file, 0, SEEK_END);
  *bytes = end > 0 ? static_cast<size_t>(end) : 0;
  *memory = mmap(nullptr, *bytes, PROT_READ, MAP_SHARED, file, 0);
  const Status status = *memory == MAP_FAILED ? failed("map") : OkStatus();
  close(file);
  return status;
}

void AddSample(const ggml_tensor& tensor, Hasher64* hasher) {
  constexpr size_t kSampleBytes = 1024;
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data), ggml_nbytes(&tensor));
  const size_t sample = std::min(kSampleBytes, bytes.size());
  hasher->Update(bytes.first(sample));
  hasher->Update(bytes.last(sample));
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::string& path) {
  SilenceGgml();
  std::unique_ptr<Model> model(new Model());
  model->path_ = path;
  KVANT_ASSIGN_OR_RETURN(model->info_, CheckGguf(path));
  KVANT_RETURN_IF_ERROR(codec::CheckHeadDim(model->params().head_dim).WithContext(path));
  KVANT_RETURN_IF_ERROR(model->MapTensors().WithContext(path));
  return model;
}

Model::~Model() = default;

Status Model::MapTensors() {
  mapping_ = std::make_unique<Mapping>();
  KVANT_RETURN_IF_ERROR(MapFile(path_, &mapping_->memory, &mapping_->bytes));
  if (mapping_->bytes != info_.file_size) {
    return {StatusCode::kIoError, "the file changed while it was read"};
  }
  gguf_context* header = gguf_init_from_file(path_.c_str(), {.no_alloc = true, .ctx = &mapping_->tensors});
  if (header == nullptr) {
    return {StatusCode::kCorruption, "ggml refuses the file: " + TakeGgmlError()};
  }
  mapping_->buffer = ggml_backend_cpu_buffer_from_ptr(mapping_->memory, mapping_->bytes);
  auto* base = static_cast<char*>(mapping_->memory) + gguf_get_data_offset(header);
  Hasher64 hasher;
  hasher.Update(std::as_bytes(std::span(&info_.fingerprint, 1)));
  for (int64_t i = 0; i < gguf_get_n_tensors(header); ++i) {
    ggml_tensor* tensor = ggml_get_tensor(mapping_->tensors, gguf_get_tensor_name(header, i));
    ggml_backend_tensor_alloc(mapping_->buffer, tensor, base + gguf_get_tensor_offset(header, i));
    AddSample(*tensor, &hasher);
  }
  fingerprint_ = hasher.Digest();
  gguf_free(header);

  token_embedding_ = Find("token_embd.weight");
  output_norm_ = Find("output_norm.weight");
  output_ = params().tied_embeddings ? token_embedding_ : Find("output.weight");
  constexpr size_t kViewsOfLayer = 5;
  mapping_->views = ggml_init({.mem_size = kViewsOfLayer * params().num_layers * ggml_tensor_overhead(),
                               .mem_buffer = nullptr,
                               .no_alloc = true});
  for (uint32_t i = 0; i < params().num_layers; ++i) {
    layers_.push_back(MapLayer(i));
  }
  return OkStatus();
}

LayerWeights Model::MapLayer(uint32_t layer) const {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const auto need = [&](const char* name) { return Find(prefix + name); };
  const auto maybe = [&](const char* name) { return FindOptional(prefix + name); };
  LayerWeights weights = {.attn_norm = need("attn_norm.weight"),
                          .attn_q_bias = maybe("attn_q.bias"),
                          .attn_k_bias = maybe("attn_k.bias"),
                          .attn_v_bias = maybe("attn_v.bias"),
                          .attn_q_norm = maybe("attn_q_norm.weight"),
                          .attn_k_norm = maybe("attn_k_norm.weight"),
                          .attn_output = need("attn_output.weight"),
                          .attn_post_norm = maybe("post_attention_norm.weight"),
                          .ffn_norm = need("ffn_norm.weight"),
                          .ffn_down = need("ffn_down.weight"),
                          .ffn_post_norm = maybe("post_ffw_norm.weight")};
  if (ggml_tensor* qkv = maybe("attn_qkv.weight"); qkv != nullptr) {
    const uint64_t q_rows = uint64_t{params().num_q_heads} * params().head_dim;
    const uint64_t kv_rows = uint64_t{params().num_kv_heads} * params().head_dim;
    weights.attn_q = Rows(qkv, 0, q_rows);
    weights.attn_k = Rows(qkv, q_rows, kv_rows);
    weights.attn_v = Rows(qkv, q_rows + kv_rows, kv_rows);
    weights.ffn_gate = Rows(need("ffn_up.weight"), 0, params().feed_forward);
    weights.ffn_up = Rows(need("ffn_up.weight"), params().feed_forward, params().feed_forward);
  } else {
    weights.attn_q = need("attn_q.weight");
    weights.attn_k = need("attn_k.weight");
    weights.attn_v = need("attn_v.weight");
    weights.ffn_gate = need("ffn_gate.weight");
    weights.ffn_up = need("ffn_up.weight");
  }
  return weights;
}

ggml_tensor* Model::Rows(ggml_tensor* matrix, uint64_t first, uint64_t count) const {
  ggml_tensor* rows = ggml_view_2d(mapping_->views, matrix, matrix->ne[0], static_cast<int64_t>(count), matrix->nb[1],
                                   first * matrix->nb[1]);
  const ggml_status status = ggml_backend_view_init(rows);
  KVANT_CHECK(status == GGML_STATUS_SUCCESS, "a view of a mapped tensor needs no memory");
  return rows;
}

ggml_tensor* Model::rope_freq_factors(uint32_t context_tokens) const {
  const RopeParams& rope = params().rope;
  if (rope.has_freq_factors) {
    return Find("rope_freqs.weight");
  }
  if (!rope.has_long_factors) {
    return nullptr;
  }
  return Find(context_tokens > rope.original_context ? "rope_factors_long.weight" : "rope_factors_short.weight");
}

ggml_tensor* Model::FindOptional(const std::string& name) const {
  return ggml_get_tensor(mapping_->tensors, name.c_str());
}

ggml_tensor* Model::Find(const std::string& name) const {
  ggml_tensor* tensor = FindOptional(name);
  KVANT_CHECK(tensor != nullptr, "CheckGguf has seen every tensor of the architecture");
  return tensor;
}

}  // namespace kvant::engine
