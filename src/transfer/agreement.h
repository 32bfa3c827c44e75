#pragma once

#include <cstdint>

#include "kvant/base/status.h"
#include "kvant/codec/layer_block.h"
#include "kvant/transfer/receiver.h"
#include "kvant/wire/layer_frame.h"
#include "kvant/wire/messages.h"

namespace kvant::transfer {

/// How a hello's precision lays out a layer of its prompt whose queries see `window` tokens, 0: all. Of a spectrum the
/// hello does not say which tokens go where: all of them are taken to be in `tier`. Nor does it say what pair pages are
/// like: with kFp16 they are as large as they can be, else as small.
codec::LayerBlockLayout LayoutOf(const wire::Hello& hello, codec::PromptTail tail, uint32_t window,
                                 codec::Tier tier = codec::Tier::kDropped);
/// Whether a layer is laid out so. The counts of tiers may differ, and an equalization of the model may come before
/// there is anything that it encodes.
bool IsLaidOut(const codec::LayerBlockLayout& layout, const wire::Hello& hello, codec::PromptTail tail,
               uint32_t window);

/// What the KV of a layer's tokens takes at fp16.
uint64_t ExactBytes(const codec::LayerBlockLayout& layout);

/// Errors  kVersionUnsupported, kMismatch, kPrecisionUnsupported, kCapacityExceeded: why this receiver refuses
Status CheckHello(const wire::Hello& hello, const ReceiverOptions& options);

/// Errors  kCorruption: not the layer that is due, or not laid out as the hello says
Status CheckLayer(const wire::Hello& hello, uint32_t window, uint32_t due, const wire::LayerView& view);

/// Errors  kCorruption: tokens or position are not the hello's
Status CheckFinish(const wire::Hello& hello, const wire::Finish& finish);

/// The largest frame that a session of this hello has.
uint64_t MaxFrameBytes(const wire::Hello& hello);

}  // namespace kvant::transfer
