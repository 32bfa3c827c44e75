#include "kvant/wire/upgrade.h"

#include <string>
#include <utility>

#include "kvant/base/check.h"
#include "kvant/base/checked.h"
#include "wire/envelope.h"

namespace kvant::wire {
namespace {

constexpr uint64_t kOfferBytes = 4;  // before the layers
constexpr uint64_t kOfferLayerBytes = 16;

Status CheckLayout(uint32_t layer, const codec::UpgradeLayout& layout) {
  KVANT_RETURN_IF_ERROR(CheckShape(layout.shape));
  KVANT_RETURN_IF_ERROR(CheckRange("layer", layer, 0, layout.shape.num_layers - 1));
  KVANT_RETURN_IF_ERROR(CheckRange("tokens", layout.num_tokens, 1, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("raised from int4 to int8", layout.moves.int4_to_int8, 0, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("raised from int4 to fp16", layout.moves.int4_to_fp16, 0, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("raised from int8 to fp16", layout.moves.int8_to_fp16, 0, kMaxTokens));
  const codec::TierMoves& moves = layout.moves;
  return CheckRange("raised tokens", uint64_t{moves.int4_to_int8} + moves.int4_to_fp16 + moves.int8_to_fp16, 1,
                    layout.num_tokens);
}

// Within the limits above a head has less than 2^34 bytes: only the limit of a payload can be passed.
Result<uint64_t> PayloadBytes(uint64_t head_bytes, const codec::CacheShape& shape) {
  const uint64_t bytes = kBlockPrefixBytes + head_bytes * shape.num_kv_heads;
  if (bytes > kMaxPayloadBytes) {
    return Status(StatusCode::kCapacityExceeded, "an upgrade of " + std::to_string(bytes) + " bytes");
  }
  return bytes;
}

void PutPrefix(ByteWriter& writer, const codec::UpgradeLayout& layout) {
  writer.Put(static_cast<uint16_t>(layout.shape.head_dim));
  writer.Put(static_cast<uint16_t>(layout.shape.num_layers));
  writer.Put(layout.shape.num_kv_heads);
  writer.Put(layout.num_tokens);
  writer.Put(layout.moves.int4_to_int8);
  writer.Put(layout.moves.int4_to_fp16);
  writer.Put(layout.moves.int8_to_fp16);
}

Result<codec::UpgradeLayout> TakePrefix(const FrameView& frame, ByteReader& reader) {
  if (frame.payload.size() < kBlockPrefixBytes) {
    return CheckPayloadBytes(frame, kBlockPrefixBytes);
  }
  codec::UpgradeLayout layout;
  layout.shape.head_dim = reader.Take<uint16_t>();
  layout.shape.num_layers = reader.Take<uint16_t>();
  layout.shape.num_kv_heads = reader.Take<uint32_t>();
  layout.num_tokens = reader.Take<uint32_t>();
  layout.moves.int4_to_int8 = reader.Take<uint32_t>();
  layout.moves.int4_to_fp16 = reader.Take<uint32_t>();
  layout.moves.int8_to_fp16 = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckLayout(frame.header.layer, layout));
  return layout;
}

}  // namespace

Result<BlockFrame> AllocateUpgrade(uint64_t session, uint32_t layer, const codec::UpgradeLayout& layout) {
  KVANT_RETURN_IF_ERROR(CheckLayout(layer, layout));
  KVANT_ASSIGN_OR_RETURN(const uint64_t payload, PayloadBytes(layout.head_bytes(), layout.shape));
  KVANT_ASSIGN_OR_RETURN(Buffer frame, AllocateFrame({FrameType::kUpgrade, layer, payload, session}));
  ByteWriter writer(frame.bytes().subspan(kHeaderBytes));
  PutPrefix(writer, layout);
  return BlockFrame(std::move(frame));
}

Result<UpgradeView> DecodeUpgrade(const FrameView& frame) {
  ByteReader reader(frame.payload);
  UpgradeView view{frame.header.layer, {}, {}};
  KVANT_ASSIGN_OR_RETURN(view.layout, TakePrefix(frame, reader));
  KVANT_ASSIGN_OR_RETURN(const uint64_t payload, PayloadBytes(view.layout.head_bytes(), view.layout.shape));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, payload));
  view.block = reader.rest();
  return view;
}

Result<Buffer> EncodeUpgradeRequest(uint64_t session, const UpgradeRequest& request) {
  const codec::UpgradeLayout& layout = request.layout;
  KVANT_RETURN_IF_ERROR(CheckLayout(request.layer, layout));
  KVANT_CHECK(request.ids.size() == size_t{layout.shape.num_kv_heads} * layout.num_tokens, "an id a head and token");
  const size_t id_bytes = codec::TierIdBytes(layout.num_tokens);
  KVANT_ASSIGN_OR_RETURN(const uint64_t payload, PayloadBytes(id_bytes, layout.shape));
  KVANT_ASSIGN_OR_RETURN(Buffer frame, AllocateFrame({FrameType::kUpgradeRequest, request.layer, payload, session}));
  ByteWriter writer(frame.bytes().subspan(kHeaderBytes));
  PutPrefix(writer, layout);
  for (uint32_t head = 0; head < layout.shape.num_kv_heads; ++head) {
    codec::PackTierIds(std::span(request.ids).subspan(size_t{head} * layout.num_tokens, layout.num_tokens),
                       frame.bytes().subspan(kBlockOffset + head * id_bytes, id_bytes));
  }
  SealFrame(frame.bytes());
  return frame;
}

Result<UpgradeRequest> DecodeUpgradeRequest(const FrameView& frame) {
  ByteReader reader(frame.payload);
  UpgradeRequest request{frame.header.layer, {}, {}};
  KVANT_ASSIGN_OR_RETURN(request.layout, TakePrefix(frame, reader));
  const codec::UpgradeLayout& layout = request.layout;
  const size_t id_bytes = codec::TierIdBytes(layout.num_tokens);
  KVANT_ASSIGN_OR_RETURN(const uint64_t payload, PayloadBytes(id_bytes, layout.shape));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, payload));
  request.ids.resize(size_t{layout.shape.num_kv_heads} * layout.num_tokens);
  for (uint32_t head = 0; head < layout.shape.num_kv_heads; ++head) {
    if (!codec::UnpackTierIds(reader.rest().subspan(head * id_bytes, id_bytes),
                              std::span(request.ids).subspan(size_t{head} * layout.num_tokens, layout.num_tokens))) {
      return Status(StatusCode::kCorruption, "bits beyond the last tier id of KV head " + std::to_string(head));
    }
  }
  return request;
}

Result<Buffer> EncodeUpgradeOffer(uint64_t session, const UpgradeOffer& offer) {
  const uint64_t payload = kOfferBytes + kOfferLayerBytes * offer.layers.size();
  return EncodeFrame(FrameType::kUpgradeOffer, session, payload, [&](ByteWriter& writer) {
    writer.Put(static_cast<uint32_t>(offer.layers.size()));
    for (const codec::TierCounts& counts : offer.layers) {
      for (const codec::Tier tier : codec::kTiers) {
        writer.Put(counts.of(tier));
      }
    }
  });
}

Result<UpgradeOffer> DecodeUpgradeOffer(const FrameView& frame) {
  if (frame.payload.size() < kOfferBytes) {
    return CheckPayloadBytes(frame, kOfferBytes);
  }
  ByteReader reader(frame.payload);
  const auto num_layers = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("layers", num_layers, 1, kMaxLayers));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kOfferBytes + kOfferLayerBytes * num_layers));
  UpgradeOffer offer;
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    codec::TierCounts& counts = offer.layers.emplace_back();
    uint64_t total = 0;
    for (const codec::Tier tier : codec::kTiers) {
      counts.of(tier) = reader.Take<uint32_t>();
      total += counts.of(tier);
    }
    KVANT_RETURN_IF_ERROR(CheckRange("tokens in tiers", total, 0, kMaxTokens));
  }
  return offer;
}

}  // namespace kvant::wire
