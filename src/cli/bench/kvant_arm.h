#pragma once

#include <optional>
#include <vector>

#include "cli/bench/decode_arm.h"
#include "kvant/engine/engine.h"

namespace kvant::cli {

/// Our engine over a cache of one precision, encoded as generation does it. Arms share the engine.
class KvantArm : public DecodeArm {
 public:
  KvantArm(engine::Engine* engine, const codec::Precision& precision, cache::MemoryAccount* account)
      : engine_(engine), precision_(precision), account_(account) {}

  std::string name() const override { return codec::PrecisionWord(precision_); }
  Status Prefill(std::span<const int32_t> prompt) override;
  Status Step(int32_t token) override;
  std::span<const float> logits() const override { return logits_; }
  uint64_t kv_bytes() const override { return sequence_->stored_bytes(); }

 protected:
  engine::Engine* engine_;
  codec::Precision precision_;
  cache::MemoryAccount* account_;
  std::optional<cache::Sequence> sequence_;
  std::vector<float> logits_;
};

/// What a step costs when there is next to nothing to attend to: always the same few tokens, at fp16.
class DepthZeroArm : public KvantArm {
 public:
  static constexpr size_t kTokens = 64;

  DepthZeroArm(engine::Engine* engine, cache::MemoryAccount* account);

  std::string name() const override { return "depth-0"; }
  Status Prefill(std::span<const int32_t> prompt) override;
  Status Step(int32_t token) override;
};

}  // namespace kvant::cli
