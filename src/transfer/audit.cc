#include "kvant/transfer/audit.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvant/cache/sequence.h"
#include "kvant/wire/answer.h"
#include "kvant/wire/layer_frame.h"
#include "kvant/wire/maps_frame.h"
#include "kvant/wire/upgrade.h"
#include "transfer/agreement.h"

namespace kvant::transfer {
namespace {

void Note(Status status, std::vector<Status>* faults) {
  if (!status.ok()) {
    faults->push_back(std::move(status));
  }
}

// A precision whose caches take such a block.
codec::Precision PrecisionOf(const codec::LayerBlockLayout& layout) {
  codec::Precision precision{.codec = layout.codec, .equalize = layout.equalized, .num_sinks = layout.split.num_sinks};
  if (layout.tiers) {
    precision.spectrum.emplace().progressive = layout.progressive;
    precision.spectrum->int4_pages = layout.int4_pages.has_value();
  }
  if (layout.pairs) {
    precision.pairs.emplace().page_tokens = layout.pairs->format.page_tokens;
  }
  // Behind skipped tokens the split must be one that some prompt has: whole runs of a residual before the tail.
  const uint32_t tail = layout.split.num_tail;
  const uint32_t before = layout.split.num_positions() - layout.split.num_sinks - tail;
  for (uint32_t run = tail + 1; tail > 0 && run <= codec::Precision::kDefaultResidual; ++run) {
    if (layout.split.num_skipped > 0 && before % run == 0) {
      precision.residual = run;
      break;
    }
  }
  return precision;
}

// What adopting the block would find in its numbers and tier ids.
Status CheckContent(const wire::LayerView& view, const codec::Precision& precision) {
  cache::MemoryAccount account;
  cache::LayerCache cache(view.layout.shape, precision, kernels::Isa::kScalar, &account);
  return cache.AdoptBlock(view.layout, view.block);
}

// Frames of which nothing but the fields can be wrong.
Status CheckFields(const wire::FrameView& frame) {
  switch (frame.header.type) {
    case wire::FrameType::kHelloReply: return wire::DecodeHelloReply(frame).status();
    case wire::FrameType::kDone: return wire::DecodeDone(frame).status();
    case wire::FrameType::kError: return wire::DecodeError(frame).status();
    case wire::FrameType::kCancel: return wire::CheckCancel(frame);
    case wire::FrameType::kAnswerRequest: return wire::DecodeAnswerRequest(frame).status();
    case wire::FrameType::kAnswerText: return wire::DecodeAnswerText(frame).status();
    case wire::FrameType::kAnswerEnd: return wire::DecodeAnswerEnd(frame).status();
    case wire::FrameType::kUpgradeOffer: return wire::DecodeUpgradeOffer(frame).status();
    case wire::FrameType::kUpgradeRequest: return wire::DecodeUpgradeRequest(frame).status();
    case wire::FrameType::kUpgrade: return wire::DecodeUpgrade(frame).status();
    case wire::FrameType::kSession: return wire::DecodeSession(frame).status();
    case wire::FrameType::kMaps: return wire::DecodeMaps(frame).status();
    default: return OkStatus();
  }
}

}  // namespace

std::vector<Status> SessionAudit::Take(const wire::FrameView& frame) {
  std::vector<Status> faults;
  if (num_frames_++ == 0) {
    session_ = frame.header.session;
  }
  switch (frame.header.type) {
    case wire::FrameType::kHello: TakeHello(frame, &faults); break;
    case wire::FrameType::kLayer: TakeLayer(frame, &faults); break;
    case wire::FrameType::kFinish: TakeFinish(frame, &faults); break;
    default: Note(CheckFields(frame), &faults);
  }
  if (hello_ && frame.header.session != session_) {
    Note({StatusCode::kCorruption,
          "session " + std::to_string(frame.header.session) + " in session " + std::to_string(session_)},
         &faults);
  }
  return faults;
}

void SessionAudit::TakeHello(const wire::FrameView& frame, std::vector<Status>* faults) {
  Result<wire::Hello> hello = wire::DecodeHello(frame);
  Note(hello.status(), faults);
  if (hello_) {
    Note({StatusCode::kCorruption, "a second hello in a session"}, faults);
  } else if (num_frames_ == 1 && hello.ok()) {
    hello_ = std::move(hello).value();
  }
}

void SessionAudit::TakeLayer(const wire::FrameView& frame, std::vector<Status>* faults) {
  const Result<wire::LayerView> view = wire::DecodeLayer(frame);
  if (!view.ok()) {
    Note(view.status(), faults);
    return;
  }
  const uint32_t skipped = view->layout.split.num_skipped;
  if (hello_) {
    // Which window the layer has, the file says by what it leaves out.
    const uint32_t window = skipped == 0 ? 0 : hello_->num_prompt_tokens - std::min(hello_->num_prompt_tokens, skipped);
    Note(finished_ ? Status(StatusCode::kCorruption, "a layer after the finish")
                   : CheckLayer(*hello_, window, next_layer_, *view),
         faults);
    next_layer_ = view->layer + 1;
  }
  Note(CheckContent(*view, hello_ && skipped > 0 ? hello_->precision : PrecisionOf(view->layout)), faults);
}

void SessionAudit::TakeFinish(const wire::FrameView& frame, std::vector<Status>* faults) {
  const Result<wire::Finish> finish = wire::DecodeFinish(frame);
  Note(finish.status(), faults);
  if (!hello_) {
    return;
  }
  if (finished_ || next_layer_ != hello_->model.shape.num_layers) {
    Note({StatusCode::kCorruption,
          finished_ ? "a second finish" : "a finish where layer " + std::to_string(next_layer_) + " is due"},
         faults);
  }
  finished_ = true;
  if (finish.ok()) {
    Note(CheckFinish(*hello_, *finish), faults);
  }
}

std::vector<Status> SessionAudit::End() const {
  if (!hello_ || finished_ || num_frames_ == 1) {
    return {};
  }
  const uint32_t layers = hello_->model.shape.num_layers;
  return {{StatusCode::kOutOfRange,
           next_layer_ < layers
               ? "the session ends before layer " + std::to_string(next_layer_) + " of " + std::to_string(layers)
               : "the session ends before its finish"}};
}

}  // namespace kvant::transfer
