#include <string>

#include "wire/envelope.h"

namespace kvant::wire {

Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) {
    return OkStatus();
  }
  const std::string limits = low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
  return {StatusCode::kInvalidArgument, std::string(field) + " " + std::to_string(value) + ", must be " + limits};
}

Status CheckPayloadBytes(const FrameView& frame, uint64_t expected) {
  if (frame.payload.size() == expected) {
    return OkStatus();
  }
  return {StatusCode::kOutOfRange, std::string(FrameTypeName(frame.header.type)) + " frame: a payload of " +
                                       std::to_string(frame.payload.size()) + " bytes where its content needs " +
                                       std::to_string(expected)};
}

Result<codec::TokenCodec> CodecOf(uint8_t number) {
  if (number >= codec::kNumTokenCodecs) {
    return Status(StatusCode::kPrecisionUnsupported, "unknown codec " + std::to_string(number));
  }
  return static_cast<codec::TokenCodec>(number);
}

Status CheckShape(const codec::CacheShape& shape) {
  KVANT_RETURN_IF_ERROR(CheckRange("num_layers", shape.num_layers, 1, kMaxLayers));
  KVANT_RETURN_IF_ERROR(CheckRange("num_kv_heads", shape.num_kv_heads, 1, kMaxKvHeads));
  return codec::CheckHeadDim(shape.head_dim);
}

}  // namespace kvant::wire
