#pragma once

#include <memory>
#include <vector>

#include "cli/bench/decode_arm.h"
#include "kvant/codec/precision.h"

struct ggml_threadpool;
struct llama_context;
struct llama_model;

namespace kvant::cli {

/// A model in libllama, on the ggml backend that engine::Backend has loaded, with threads that sleep when idle: nobody
/// spins beside the arm that is measured.
class LlamaModel {
 public:
  /// Requires an engine::Backend in this process
  /// Errors  kModelUnsupported with libllama's words
  static Result<std::unique_ptr<LlamaModel>> Load(const std::string& path, int num_threads);
  ~LlamaModel();
  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;

  llama_model* handle() const { return model_; }
  ggml_threadpool* threads() const { return threads_; }
  int num_threads() const { return num_threads_; }

 private:
  LlamaModel() = default;

  llama_model* model_ = nullptr;
  ggml_threadpool* threads_ = nullptr;
  void (*free_threads_)(ggml_threadpool*) = nullptr;
  int num_threads_ = 0;
};

/// libllama over its f16 cache, with or without flash attention.
class LlamaArm : public DecodeArm {
 public:
  /// Room for `context` tokens; `shape` is the model's, for kv_bytes.
  /// Errors  kOutOfMemory with libllama's words
  static Result<std::unique_ptr<LlamaArm>> Create(const LlamaModel* model, bool flash_attention, uint32_t context,
                                                  const codec::CacheShape& shape);
  ~LlamaArm() override;
  LlamaArm(const LlamaArm&) = delete;
  LlamaArm& operator=(const LlamaArm&) = delete;

  std::string name() const override { return flash_attention_ ? "llama.cpp f16 flash" : "llama.cpp f16"; }
  Status Prefill(std::span<const int32_t> prompt) override;
  Status Step(int32_t token) override;
  std::span<const float> logits() const override { return logits_; }
  uint64_t kv_bytes() const override;

 private:
  LlamaArm() = default;
  Status Decode(std::span<const int32_t> tokens);
  void TakeLogits();

  const LlamaModel* model_ = nullptr;
  codec::CacheShape shape_;
  llama_context* context_ = nullptr;
  bool flash_attention_ = false;
  uint64_t num_tokens_ = 0;
  std::vector<int32_t> batch_;
  std::span<const float> logits_;
};

}  // namespace kvant::cli
