#include "kvant/wire/layer_frame.h"

#include "kvant/base/checked.h"
#include "wire/envelope.h"

namespace kvant::wire {
namespace {

// Of the field with the sinks the lowest bits are theirs.
constexpr uint32_t kSinkBits = 8;
constexpr uint32_t kMaxSkipped = (1U << (32 - kSinkBits)) - 1;
static_assert(codec::Precision::kMaxSinks < 1U << kSinkBits, "sinks have a byte");

Status CheckSplit(const codec::TokenSplit& split) {
  KVANT_RETURN_IF_ERROR(CheckRange("num_sinks", split.num_sinks, 0, codec::Precision::kMaxSinks));
  KVANT_RETURN_IF_ERROR(CheckRange("num_encoded", split.num_encoded, 0, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("num_tail", split.num_tail, 0, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("num_skipped", split.num_skipped, 0, kMaxSkipped));
  return CheckRange("tokens", split.total(), 1, kMaxTokens - split.num_skipped);
}

Status CheckTiers(const codec::TierCounts& counts, const codec::TokenSplit& split) {
  const uint64_t total = uint64_t{counts.fp16} + counts.int8 + counts.int4 + counts.dropped;
  return CheckRange("tokens in tiers", total, split.num_encoded, split.num_encoded);
}

Status CheckInt4Pages(const codec::LayerBlockLayout& layout) {
  KVANT_RETURN_IF_ERROR(codec::CheckPairFormat(codec::Int4PageFormat(layout.shape.head_dim).format));
  KVANT_RETURN_IF_ERROR(CheckRange("pages", layout.int4_pages->count, 0, layout.tiers->int4 / codec::kInt4PageTokens));
  return CheckRange("rows before pages", layout.int4_pages->rows_before, 0, layout.rows_of(codec::Tier::kInt4));
}

// Payload bytes of a layer frame, or why there can be none.
Result<uint64_t> PayloadBytes(uint32_t layer, const codec::LayerBlockLayout& layout) {
  KVANT_RETURN_IF_ERROR(CheckShape(layout.shape));
  KVANT_RETURN_IF_ERROR(CheckRange("layer", layer, 0, layout.shape.num_layers - 1));
  KVANT_RETURN_IF_ERROR(CheckSplit(layout.split));
  if (layout.tiers) {
    KVANT_RETURN_IF_ERROR(CheckTiers(*layout.tiers, layout.split));
  }
  if (layout.int4_pages) {
    KVANT_RETURN_IF_ERROR(CheckInt4Pages(layout));
  }
  if (layout.pairs && layout.split.num_encoded % layout.pairs->format.page_tokens != 0) {
    return Status(StatusCode::kInvalidArgument, "num_encoded " + std::to_string(layout.split.num_encoded) +
                                                    ", must be whole pages of " +
                                                    std::to_string(layout.pairs->format.page_tokens));
  }
  if (layout.progressive && !layout.equalized && layout.split.num_encoded > 0) {
    return Status(StatusCode::kInvalidArgument, "equalized 0, must be 1 where the progressive code is used");
  }
  if (layout.equalized && !codec::HasScale(layout.codec)) {
    return Status(StatusCode::kInvalidArgument, "equalized 1, must be 0 where nothing is quantized");
  }
  // Within the limits above a head has less than 2^36 bytes and a block less than 2^46: only the limit can be passed.
  const auto block_bytes = CheckedMul(layout.head_bytes(), layout.shape.num_kv_heads);
  const auto with_map = block_bytes
                            ? CheckedAdd(*block_bytes, layout.map_bytes() + layout.counts_bytes() + layout.pair_bytes())
                            : block_bytes;
  const auto payload = with_map ? CheckedAdd(*with_map, kBlockPrefixBytes) : with_map;
  if (!payload || *payload > kMaxPayloadBytes) {
    return Status(StatusCode::kCapacityExceeded, "a layer of " + std::to_string(layout.split.total()) + " tokens and " +
                                                     std::to_string(layout.shape.num_kv_heads) +
                                                     " KV heads would exceed a payload of " +
                                                     std::to_string(kMaxPayloadBytes) + " bytes");
  }
  return *payload;
}

}  // namespace

Result<BlockFrame> AllocateLayer(uint64_t session, uint32_t layer, const codec::LayerBlockLayout& layout) {
  KVANT_ASSIGN_OR_RETURN(const uint64_t payload_bytes, PayloadBytes(layer, layout));
  KVANT_ASSIGN_OR_RETURN(Buffer frame, AllocateFrame({FrameType::kLayer, layer, payload_bytes, session}));
  ByteWriter writer(frame.bytes().subspan(kHeaderBytes));
  writer.Put(CodecNumber(
      {layout.pairs.has_value(), layout.tiers.has_value(), layout.progressive, layout.int4_pages.has_value()},
      layout.codec));
  writer.Put(static_cast<uint8_t>(layout.equalized));
  writer.Put(static_cast<uint16_t>(layout.shape.head_dim));
  writer.Put(layout.shape.num_kv_heads);
  writer.Put(layout.shape.num_layers);
  writer.Put(layout.split.num_sinks | layout.split.num_skipped << kSinkBits);
  writer.Put(layout.split.num_encoded);
  writer.Put(layout.split.num_tail);
  return BlockFrame(std::move(frame));
}

Result<LayerView> DecodeLayer(const FrameView& frame) {
  if (frame.payload.size() < kBlockPrefixBytes) {
    return CheckPayloadBytes(frame, kBlockPrefixBytes);
  }
  ByteReader reader(frame.payload);
  LayerView view;
  view.layer = frame.header.layer;
  const auto number = reader.Take<uint8_t>();
  view.layout.codec = codec::TokenCodec::kInt8;
  const CodecKind kind = KindOf(number);
  view.layout.progressive = kind.progressive;
  if (!kind.tiers && !kind.pairs) {
    KVANT_ASSIGN_OR_RETURN(view.layout.codec, CodecOf(number));
  }
  const auto equalized = reader.Take<uint8_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("equalized", equalized, 0, 1));
  view.layout.equalized = equalized == 1;
  view.layout.shape.head_dim = reader.Take<uint16_t>();
  view.layout.shape.num_kv_heads = reader.Take<uint32_t>();
  view.layout.shape.num_layers = reader.Take<uint32_t>();
  const auto first = reader.Take<uint32_t>();
  view.layout.split.num_sinks = first & ((1U << kSinkBits) - 1);
  view.layout.split.num_skipped = first >> kSinkBits;
  view.layout.split.num_encoded = reader.Take<uint32_t>();
  view.layout.split.num_tail = reader.Take<uint32_t>();
  view.block = reader.rest();
  if (kind.tiers) {
    view.layout.tiers.emplace();
    view.layout.int4_pages = kind.int4_pages ? std::optional(codec::Int4Pages{}) : std::nullopt;
    if (view.block.size() < view.layout.counts_bytes()) {
      return CheckPayloadBytes(frame, kBlockPrefixBytes + view.layout.counts_bytes());
    }
    ByteReader counts(view.block);
    for (const codec::Tier tier : codec::kTiers) {
      view.layout.tiers->of(tier) = counts.Take<uint32_t>();
    }
    if (kind.int4_pages) {
      view.layout.int4_pages->rows_before = counts.Take<uint32_t>();
      view.layout.int4_pages->count = counts.Take<uint32_t>();
    }
  }
  if (kind.pairs) {
    KVANT_RETURN_IF_ERROR(CheckShape(view.layout.shape));
    if (view.block.size() < codec::kPairFormatBytes) {
      return CheckPayloadBytes(frame, kBlockPrefixBytes + codec::kPairFormatBytes);
    }
    KVANT_ASSIGN_OR_RETURN(view.layout.pairs, codec::TakePairFormat(view.layout.shape.head_dim,
                                                                    view.block.first(codec::kPairFormatBytes)));
  }
  KVANT_ASSIGN_OR_RETURN(const uint64_t payload_bytes, PayloadBytes(view.layer, view.layout));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, payload_bytes));
  return view;
}

}  // namespace kvant::wire
