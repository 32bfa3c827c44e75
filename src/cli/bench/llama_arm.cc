#include "cli/bench/llama_arm.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <llama.h>

#include <algorithm>

#include "kvant/base/check.h"
#include "kvant/engine/backend.h"

namespace kvant::cli {
namespace {

constexpr size_t kPromptBatch = 512;  // as engine::PrefillOptions::chunk_tokens

template <typename Function>
Function* FindInCpuBackend(const char* name) {
  ggml_backend_reg_t registry = ggml_backend_reg_by_name("CPU");
  KVANT_CHECK(registry != nullptr, "engine::Backend has loaded ggml's CPU backend");
  auto* function = reinterpret_cast<Function*>(ggml_backend_reg_get_proc_address(registry, name));
  KVANT_CHECK(function != nullptr, "the pinned ggml exports this function");
  return function;
}

}  // namespace

Result<std::unique_ptr<LlamaModel>> LlamaModel::Load(const std::string& path, int num_threads) {
  std::unique_ptr<LlamaModel> result(new LlamaModel);
  result->num_threads_ = num_threads;
  result->model_ = llama_model_load_from_file(path.c_str(), llama_model_default_params());
  if (result->model_ == nullptr) {
    return Status(StatusCode::kModelUnsupported, "libllama does not load " + path + ": " + engine::TakeGgmlError());
  }
  ggml_threadpool_params params = ggml_threadpool_params_default(num_threads);
  params.poll = 0;
  result->threads_ = FindInCpuBackend<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(&params);
  result->free_threads_ = FindInCpuBackend<decltype(ggml_threadpool_free)>("ggml_threadpool_free");
  return result;
}

LlamaModel::~LlamaModel() {
  if (threads_ != nullptr) {
    free_threads_(threads_);
  }
  llama_model_free(model_);
}

Result<std::unique_ptr<LlamaArm>> LlamaArm::Create(const LlamaModel* model, bool flash_attention, uint32_t context,
                                                   const codec::CacheShape& shape) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = context;
  params.n_batch = kPromptBatch;
  params.n_ubatch = kPromptBatch;
  params.n_threads = model->num_threads();
  params.n_threads_batch = model->num_threads();
  params.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  std::unique_ptr<LlamaArm> arm(new LlamaArm);
  arm->model_ = model;
  arm->shape_ = shape;
  arm->flash_attention_ = flash_attention;
  arm->context_ = llama_init_from_model(model->handle(), params);
  if (arm->context_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  "libllama makes no context of " + std::to_string(context) + " tokens: " + engine::TakeGgmlError());
  }
  llama_attach_threadpool(arm->context_, model->threads(), model->threads());
  return arm;
}

LlamaArm::~LlamaArm() { llama_free(context_); }

Status LlamaArm::Prefill(std::span<const int32_t> prompt) {
  llama_memory_clear(llama_get_memory(context_), /*data=*/false);
  num_tokens_ = 0;
  for (size_t first = 0; first < prompt.size(); first += kPromptBatch) {
    KVANT_RETURN_IF_ERROR(Decode(prompt.subspan(first, std::min(kPromptBatch, prompt.size() - first))));
  }
  TakeLogits();
  return OkStatus();
}

Status LlamaArm::Step(int32_t token) {
  KVANT_RETURN_IF_ERROR(Decode({&token, 1}));
  TakeLogits();
  return OkStatus();
}

Status LlamaArm::Decode(std::span<const int32_t> tokens) {
  batch_.assign(tokens.begin(), tokens.end());
  const int32_t outcome =
      llama_decode(context_, llama_batch_get_one(batch_.data(), static_cast<int32_t>(batch_.size())));
  if (outcome != 0) {
    return {StatusCode::kInternal, "llama_decode returned " + std::to_string(outcome) + ": " + engine::TakeGgmlError()};
  }
  num_tokens_ += tokens.size();
  return OkStatus();
}

// Waits until they are computed.
void LlamaArm::TakeLogits() {
  const auto vocab_size = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_->handle())));
  logits_ = {llama_get_logits_ith(context_, -1), vocab_size};
}

uint64_t LlamaArm::kv_bytes() const {
  constexpr uint64_t kBytesOfKeyAndValue = 2 * 2;
  return num_tokens_ * shape_.num_layers * shape_.num_kv_heads * shape_.head_dim * kBytesOfKeyAndValue;
}

}  // namespace kvant::cli
