#include "transfer/agreement.h"

#include <algorithm>
#include <string>

#include "transfer/channel.h"

namespace kvant::transfer {
namespace {

constexpr codec::PromptTail kTails[] = {codec::PromptTail::kEncodeAll, codec::PromptTail::kByPosition};

// The layers say what their pages are: the smallest that they can be, or the largest.
codec::PairBlockFormat PairFormatOf(const wire::Hello& hello, bool largest) {
  const uint32_t head_dim = hello.model.shape.head_dim;
  codec::PairPrecision precision;
  precision.page_tokens = hello.precision.pairs->page_tokens;
  precision.value_bits = largest ? 8 : 2;
  precision.value_group = largest ? codec::kMinValueGroup : head_dim;
  codec::PairBlockFormat format = codec::PairBlockFormatOf(precision, head_dim, codec::PairLayout::kHalfSplit, {});
  format.bits_per_key = head_dim * (largest ? codec::WidthMap::kMaxKeyBits : 1);
  return format;
}

uint64_t LeastBytes(const wire::Hello& hello, uint32_t window) {
  uint64_t layer_bytes = UINT64_MAX;
  for (const codec::PromptTail tail : kTails) {
    layer_bytes = std::min<uint64_t>(layer_bytes, LayoutOf(hello, tail, window).total_bytes());
  }
  return layer_bytes;
}

// The least the cache will need: a prompt that can never fit is refused before it is sent.
Status CheckMemory(const wire::Hello& hello, const ReceiverOptions& options) {
  uint64_t needed = 0;  // below 2^57 within the limits of a hello
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    needed += LeastBytes(hello, options.WindowOf(layer));
  }
  return options.account->CheckRoom(needed);
}

}  // namespace

codec::LayerBlockLayout LayoutOf(const wire::Hello& hello, codec::PromptTail tail, uint32_t window, codec::Tier tier) {
  const codec::TokenSplit split = codec::SplitPrompt(hello.precision, hello.num_prompt_tokens, tail, window);
  codec::LayerBlockLayout layout{hello.model.shape, hello.precision.codec,
                                 hello.precision.equalize && split.num_encoded > 0, split};
  if (hello.precision.spectrum) {
    layout.tiers.emplace().of(tier) = split.num_encoded;
    layout.progressive = hello.precision.is_progressive();
    if (hello.precision.has_int4_pages()) {
      layout.int4_pages = {layout.tiers->int4 % codec::kInt4PageTokens, layout.tiers->int4 / codec::kInt4PageTokens};
    }
  }
  if (hello.precision.pairs) {
    layout.pairs = PairFormatOf(hello, /*largest=*/tier == codec::Tier::kFp16);
  }
  return layout;
}

bool IsLaidOut(const codec::LayerBlockLayout& layout, const wire::Hello& hello, codec::PromptTail tail,
               uint32_t window) {
  const codec::LayerBlockLayout expected = LayoutOf(hello, tail, window);
  if (layout.pairs.has_value() != expected.pairs.has_value() ||
      (layout.pairs && layout.pairs->format.page_tokens != expected.pairs->format.page_tokens)) {
    return false;
  }
  if (layout.int4_pages.has_value() != expected.int4_pages.has_value() ||
      (layout.int4_pages && (layout.int4_pages->count != layout.tiers->int4 / codec::kInt4PageTokens ||
                             layout.int4_pages->rows_before != layout.rows_of(codec::Tier::kInt4)))) {
    return false;
  }
  const bool of_the_model = layout.equalized && hello.precision.equalize && expected.split.num_encoded == 0;
  return layout.shape == expected.shape && layout.codec == expected.codec &&
         (layout.equalized == expected.equalized || of_the_model) && layout.split == expected.split &&
         layout.tiers.has_value() == expected.tiers.has_value() && layout.progressive == expected.progressive;
}

uint64_t ExactBytes(const codec::LayerBlockLayout& layout) {
  return codec::LayerBlockLayout{layout.shape, codec::TokenCodec::kFp16, false, {0, 0, layout.split.total()}}
      .total_bytes();
}

Status CheckHello(const wire::Hello& hello, const ReceiverOptions& options) {
  if (hello.protocol != wire::kProtocol) {
    return {StatusCode::kVersionUnsupported,
            "protocol: sender " + std::to_string(hello.protocol) + ", receiver " + std::to_string(wire::kProtocol)};
  }
  if (std::string difference = wire::DifferenceOf(hello.model, options.model); !difference.empty()) {
    return {StatusCode::kMismatch, std::move(difference)};
  }
  if (options.precision && *options.precision != hello.precision) {
    return {StatusCode::kPrecisionUnsupported, "precision: sender " + codec::PrecisionWord(hello.precision) +
                                                   ", receiver " + codec::PrecisionWord(*options.precision)};
  }
  if (hello.num_context_tokens > options.max_context_tokens) {
    return {StatusCode::kCapacityExceeded, "context: " + std::to_string(hello.num_context_tokens) +
                                               " tokens are needed, the receiver has " +
                                               std::to_string(options.max_context_tokens)};
  }
  return CheckMemory(hello, options);
}

Status CheckLayer(const wire::Hello& hello, uint32_t window, uint32_t due, const wire::LayerView& view) {
  if (view.layer != due) {
    return {StatusCode::kCorruption,
            "layer " + std::to_string(view.layer) + " where layer " + std::to_string(due) + " is due"};
  }
  const bool agreed = std::any_of(std::begin(kTails), std::end(kTails),
                                  [&](codec::PromptTail tail) { return IsLaidOut(view.layout, hello, tail, window); });
  return agreed ? OkStatus()
                : Status(StatusCode::kCorruption,
                         "layer " + std::to_string(due) + " is not laid out as the hello's precision says");
}

Status CheckFinish(const wire::Hello& hello, const wire::Finish& finish) {
  const uint32_t expected = hello.num_prompt_tokens;
  if (finish.prompt_tokens.size() == expected && finish.first_position == expected) {
    return OkStatus();
  }
  return {StatusCode::kCorruption, "the finish has " + std::to_string(finish.prompt_tokens.size()) +
                                       " prompt tokens and first position " + std::to_string(finish.first_position) +
                                       " where the hello said " + std::to_string(expected) + " tokens"};
}

uint64_t MaxFrameBytes(const wire::Hello& hello) {
  uint64_t largest = std::max<uint64_t>(kMaxVerdictFrameBytes, wire::kHeaderBytes + wire::kFinishBytes +
                                                                   sizeof(int32_t) * uint64_t{hello.num_prompt_tokens});
  for (const codec::PromptTail tail : kTails) {
    codec::LayerBlockLayout layout = LayoutOf(hello, tail, /*window=*/0, codec::Tier::kFp16);
    layout.equalized = hello.precision.equalize;
    const uint64_t id_bytes = layout.shape.num_kv_heads * codec::TierIdBytes(layout.split.num_encoded);
    largest = std::max<uint64_t>(largest, wire::kBlockOffset + layout.total_bytes() + id_bytes);
  }
  return largest;
}

}  // namespace kvant::transfer
