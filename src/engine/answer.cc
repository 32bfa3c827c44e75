#include "engine/answer.h"

#include <algorithm>
#include <string>

#include "engine/refiner.h"

namespace kvant::engine {

std::string_view FinishReasonName(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

Result<uint32_t> AnswerLimit(const ModelParams& params, size_t prompt_tokens, const GenerateOptions& options) {
  const uint32_t context = options.context == 0 ? params.context_length : options.context;
  if (prompt_tokens == 0) {
    return Status(StatusCode::kInvalidArgument, "the prompt is empty");
  }
  if (options.max_tokens == 0) {
    return Status(StatusCode::kInvalidArgument, "at least one token must be asked for");
  }
  if (prompt_tokens >= context) {
    return Status(StatusCode::kCapacityExceeded, "the prompt has " + std::to_string(prompt_tokens) +
                                                     " tokens and the context holds " + std::to_string(context) +
                                                     ", answer included");
  }
  return std::min(options.max_tokens, context - static_cast<uint32_t>(prompt_tokens));
}

Status Answer::Run(cache::Sequence& sequence, int32_t first_token, uint32_t limit, GenerateReport* report) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;
  int32_t token = first_token;
  while (Emit(token, report)) {
    last = Clock::now();
    if (report->completion_tokens == limit) {
      break;
    }
    KVANT_ASSIGN_OR_RETURN(token, Next(sequence, token));
  }
  Show(stream_.Finish(), report);
  if (report->completion_tokens > 1) {
    report->tpot_ms = MillisecondsBetween(begin, last) / (report->completion_tokens - 1);
  }
  DescribeCache(sequence, report);
  return OkStatus();
}

bool Answer::Emit(int32_t token, GenerateReport* report) {
  if (!options_->ignore_eos && tokenizer_->IsEndOfGeneration(token)) {
    report->finish_reason = FinishReason::kStop;
    return false;
  }
  ++report->completion_tokens;
  Show(stream_.Push(tokenizer_->Piece(token)), report);
  return true;
}

void Answer::Show(std::string text, GenerateReport* report) {
  report->text += text;
  if (callbacks_->text && !text.empty()) {
    callbacks_->text(text);
  }
}

Result<int32_t> Answer::Next(cache::Sequence& sequence, int32_t token) {
  if (callbacks_->cancelled && callbacks_->cancelled()) {
    return Status(StatusCode::kCancelled, "generation cancelled");
  }
  KVANT_RETURN_IF_ERROR(Decode(sequence, token));
  decoded_.push_back(token);
  KVANT_RETURN_IF_ERROR(sequence.EncodeDue(&engine_->backend().pool()));
  return sampler_->Sample(logits_);
}

Status Answer::Decode(cache::Sequence& sequence, int32_t token) {
  const DecodeItem item{&sequence, token};
  if (refiner_ == nullptr) {
    return engine_->Decode(std::span(&item, 1), &logits_);
  }
  KVANT_RETURN_IF_ERROR(refiner_->Adopt(sequence, &engine_->backend().pool()));
  if (!refiner_->wants_mass()) {
    return engine_->Decode(std::span(&item, 1), &logits_);
  }
  AttentionMass mass;
  KVANT_RETURN_IF_ERROR(engine_->Decode(std::span(&item, 1), &logits_, &mass));
  return refiner_->Observe(sequence, mass);
}

void DescribeReceived(const cache::Sequence& sequence, GenerateReport* report) {
  codec::TokenSplit split;
  for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
    const codec::TokenSplit sent =
        codec::SkipFirst(sequence.layer(layer).split(), sequence.layer(layer).num_unreachable());
    split = sent.total() > split.total() ? sent : split;
  }
  report->wire_tokens_encoded = sequence.precision().is_exact() ? 0 : split.num_encoded;
  report->wire_tokens_exact = split.total() - report->wire_tokens_encoded;
}

void DescribeCache(const cache::Sequence& sequence, GenerateReport* report) {
  const codec::CacheShape& shape = sequence.shape();
  report->kv_bytes = sequence.stored_bytes();
  report->kv_bytes_allocated = sequence.allocated_bytes();
  report->kv_bytes_fp16 = sequence.reachable_bytes_fp16();
  report->bits = sequence.bits();
  report->tiers = {};
  const double share = 1.0 / shape.num_layers;
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    const codec::LayerBlockLayout layout = sequence.layer(layer).reachable_layout();
    const codec::TierCounts counts = layout.counts();
    report->tiers.fp16 += share * (layout.split.num_sinks + counts.fp16 + layout.split.num_tail);
    report->tiers.int8 += share * counts.int8;
    report->tiers.int4 += share * counts.int4;
    report->tiers.dropped += share * counts.dropped;
  }
}

}  // namespace kvant::engine
