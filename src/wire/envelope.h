#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/codec/precision.h"
#include "kvant/wire/frame.h"
#include "wire/bytes.h"

namespace kvant::wire {

/// A buffer for a whole frame with its header in place, checksum 0.
Result<Buffer> AllocateFrame(const FrameHeader& header);

/// Compute the checksum of a frame whose payload is complete.
void SealFrame(std::span<std::byte> frame);

/// A frame without a layer: allocate, let `write` fill the payload, seal.
template <typename Write>
Result<Buffer> EncodeFrame(FrameType type, uint64_t session, uint64_t payload_bytes, Write&& write) {
  KVANT_ASSIGN_OR_RETURN(Buffer frame, AllocateFrame({type, 0, payload_bytes, session}));
  ByteWriter writer(frame.bytes().subspan(kHeaderBytes));
  write(writer);
  SealFrame(frame.bytes());
  return frame;
}

/// Errors  kInvalidArgument "<field> <value>, must be <low> to <high>"
Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high);

/// Errors  kOutOfRange when the payload has another size than its content needs
Status CheckPayloadBytes(const FrameView& frame, uint64_t expected);

/// The codec bytes of hellos and layers beyond those of TokenCodec: every token in a tier of its own.
inline constexpr uint8_t kTiersNumber = 4;
inline constexpr uint8_t kProgressiveNumber = 5;  ///< … cut off the progressive code
inline constexpr uint8_t kPairsNumber = 6;        ///< pair pages
inline constexpr uint8_t kInt4PagesNumber = 7;    ///< tiers, int4 tokens in pages
static_assert(kTiersNumber >= codec::kNumTokenCodecs, "a number has one meaning");

/// What a hello's precision or a layer's layout is.
struct CodecKind {
  bool pairs = false;
  bool tiers = false;
  bool progressive = false;
  bool int4_pages = false;
};

constexpr uint8_t CodecNumber(const CodecKind& kind, codec::TokenCodec codec) {
  return kind.pairs         ? kPairsNumber
         : kind.progressive ? kProgressiveNumber
         : kind.int4_pages  ? kInt4PagesNumber
         : kind.tiers       ? kTiersNumber
                            : static_cast<uint8_t>(codec);
}
constexpr CodecKind KindOf(uint8_t number) {
  return {number == kPairsNumber, number == kTiersNumber || number == kProgressiveNumber || number == kInt4PagesNumber,
          number == kProgressiveNumber, number == kInt4PagesNumber};
}

/// Errors  kPrecisionUnsupported, naming the number
Result<codec::TokenCodec> CodecOf(uint8_t number);

/// Layers, KV heads and head dimension within what a frame may say.
/// Errors  kInvalidArgument, kModelUnsupported
Status CheckShape(const codec::CacheShape& shape);

}  // namespace kvant::wire
