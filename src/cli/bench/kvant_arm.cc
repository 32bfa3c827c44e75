#include "cli/bench/kvant_arm.h"

#include <algorithm>

#include "kvant/engine/prompt_encoder.h"

namespace kvant::cli {
namespace {

constexpr codec::Precision kExact = {codec::TokenCodec::kFp16, false, 0, codec::Precision::kEndlessResidual};

}  // namespace

Status KvantArm::Prefill(std::span<const int32_t> prompt) {
  sequence_.reset();
  KVANT_ASSIGN_OR_RETURN(sequence_, engine_->NewSequence(precision_, account_));
  engine::EncodeInPlace consumer(sequence_->precision(), codec::PromptTail::kByPosition, &engine_->backend().pool());
  return engine_->Prefill(*sequence_, prompt, consumer, {}, &logits_);
}

Status KvantArm::Step(int32_t token) {
  const engine::DecodeItem item{&*sequence_, token};
  KVANT_RETURN_IF_ERROR(engine_->Decode({&item, 1}, &logits_));
  return sequence_->EncodeDue(&engine_->backend().pool());
}

DepthZeroArm::DepthZeroArm(engine::Engine* engine, cache::MemoryAccount* account) : KvantArm(engine, kExact, account) {}

Status DepthZeroArm::Prefill(std::span<const int32_t> prompt) {
  return KvantArm::Prefill(prompt.first(std::min(prompt.size(), kTokens)));
}

Status DepthZeroArm::Step(int32_t token) {
  KVANT_RETURN_IF_ERROR(KvantArm::Step(token));
  return sequence_->ShrinkExact(1);
}

}  // namespace kvant::cli
