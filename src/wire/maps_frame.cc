#include "kvant/wire/maps_frame.h"

#include <algorithm>

#include "wire/envelope.h"

namespace kvant::wire {
namespace {

// What a frame holds. The numbers are stable for life.
constexpr uint32_t kWidths = 1;
constexpr uint32_t kEqualization = 2;

uint64_t WidthsBytes(const codec::CacheShape& shape) {
  return codec::kPairFormatBytes + uint64_t{shape.num_kv_heads} * (shape.head_dim / 4);
}
uint64_t EqualizationBytes(const codec::CacheShape& shape) {
  return uint64_t{2} * sizeof(Half) * shape.num_kv_heads * shape.head_dim;
}

Status TakeWidths(const codec::CacheShape& shape, std::span<const std::byte> bytes, codec::LayerMaps* maps) {
  KVANT_ASSIGN_OR_RETURN(maps->pairs, codec::TakePairFormat(shape.head_dim, bytes.first(codec::kPairFormatBytes)));
  KVANT_ASSIGN_OR_RETURN(maps->widths, codec::TakeWidthMaps(*maps->pairs, shape.num_kv_heads, bytes));
  return OkStatus();
}

Status TakeEqualization(const codec::CacheShape& shape, ByteReader& reader, codec::LayerMaps* maps) {
  codec::Equalization map{shape.num_kv_heads, shape.head_dim, {}, {}};
  for (std::vector<Half>* halves : {&map.mean, &map.scale}) {
    halves->resize(size_t{shape.num_kv_heads} * shape.head_dim);
    for (Half& half : *halves) {
      half.bits = reader.Take<uint16_t>();
    }
  }
  maps->equalization = std::move(map);
  return codec::CheckEqualization(*maps->equalization);
}

}  // namespace

Result<Buffer> EncodeMaps(uint64_t session, const MapsFrame& frame) {
  KVANT_RETURN_IF_ERROR(CheckShape(frame.shape));
  const bool widths = frame.maps.pairs.has_value();
  const uint64_t bytes = kMapsBytes + (widths ? WidthsBytes(frame.shape) : EqualizationBytes(frame.shape));
  KVANT_ASSIGN_OR_RETURN(Buffer buffer, AllocateFrame({FrameType::kMaps, frame.layer, bytes, session}));
  ByteWriter writer(buffer.bytes().subspan(kHeaderBytes));
  writer.Put(widths ? kWidths : kEqualization);
  writer.Put(frame.shape.num_layers);
  writer.Put(frame.shape.num_kv_heads);
  writer.Put(frame.shape.head_dim);
  writer.Put(uint64_t{0});
  if (widths) {
    codec::PutPairMaps(*frame.maps.pairs, frame.maps.widths, buffer.bytes().subspan(kHeaderBytes + kMapsBytes));
  } else {
    writer.PutBytes(std::as_bytes(std::span(frame.maps.equalization->mean)));
    writer.PutBytes(std::as_bytes(std::span(frame.maps.equalization->scale)));
  }
  SealFrame(buffer.bytes());
  return buffer;
}

Result<MapsFrame> DecodeMaps(const FrameView& frame) {
  if (frame.payload.size() < kMapsBytes) {
    return CheckPayloadBytes(frame, kMapsBytes);
  }
  ByteReader reader(frame.payload);
  MapsFrame result{.layer = frame.header.layer, .shape = {}, .maps = {}};
  const auto kind = reader.Take<uint32_t>();
  result.shape.num_layers = reader.Take<uint32_t>();
  result.shape.num_kv_heads = reader.Take<uint32_t>();
  result.shape.head_dim = reader.Take<uint32_t>();
  const auto reserved = reader.Take<uint64_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("kind of maps", kind, kWidths, kEqualization));
  KVANT_RETURN_IF_ERROR(CheckShape(result.shape));
  KVANT_RETURN_IF_ERROR(CheckRange("layer", result.layer, 0, result.shape.num_layers - 1));
  KVANT_RETURN_IF_ERROR(CheckRange("reserved", reserved, 0, 0));
  const uint64_t bytes = kind == kWidths ? WidthsBytes(result.shape) : EqualizationBytes(result.shape);
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kMapsBytes + bytes));
  KVANT_RETURN_IF_ERROR(kind == kWidths ? TakeWidths(result.shape, reader.rest(), &result.maps)
                                        : TakeEqualization(result.shape, reader, &result.maps));
  return result;
}

}  // namespace kvant::wire
