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
  ggml_backend_buffer_t buffer = nullptr;

  ~Mapping() {
    ggml_backend_buffer_free(buffer);
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
  rope_freq_factors_ = params().rope.has_freq_factors ? Find("rope_freqs.weight") : nullptr;
  for (uint32_t i = 0; i < params().num_layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    layers_.push_back({.attn_norm = Find(layer + "attn_norm.weight"),
                       .attn_q = Find(layer + "attn_q.weight"),
                       .attn_k = Find(layer + "attn_k.weight"),
                       .attn_v = Find(layer + "attn_v.weight"),
                       .attn_output = Find(layer + "attn_output.weight"),
                       .ffn_norm = Find(layer + "ffn_norm.weight"),
                       .ffn_gate = Find(layer + "ffn_gate.weight"),
                       .ffn_up = Find(layer + "ffn_up.weight"),
                       .ffn_down = Find(layer + "ffn_down.weight")});
  }
  return OkStatus();
}

ggml_tensor* Model::Find(const std::string& name) const {
  ggml_tensor* tensor = ggml_get_tensor(mapping_->tensors, name.c_str());
  KVANT_CHECK(tensor != nullptr, "CheckGguf has seen every tensor of the architecture");
  return tensor;
}

}  // namespace kvant::engine
