#include "kvant/wire/frame.h"

#include <array>

#include "kvant/base/hash.h"
#include "wire/envelope.h"

namespace kvant::wire {
namespace {

constexpr std::string_view kUnknownType = "unknown";
constexpr size_t kChecksumOffset = 32;
constexpr size_t kChecksumBytes = 8;
static_assert(kChecksumOffset + kChecksumBytes == kHeaderBytes, "the checksum ends the header");

// The header as it lies in a frame, before any of it is believed.
struct RawHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t flags;
  uint32_t layer;
  uint64_t payload_bytes;
  uint64_t session;
  uint64_t checksum;
};

RawHeader ReadHeader(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  RawHeader raw{};
  raw.magic = reader.Take<uint32_t>();
  raw.version = reader.Take<uint16_t>();
  raw.type = reader.Take<uint16_t>();
  raw.flags = reader.Take<uint32_t>();
  raw.layer = reader.Take<uint32_t>();
  raw.payload_bytes = reader.Take<uint64_t>();
  raw.session = reader.Take<uint64_t>();
  raw.checksum = reader.Take<uint64_t>();
  return raw;
}

uint64_t ChecksumOf(std::span<const std::byte> frame) {
  constexpr std::array<std::byte, kChecksumBytes> kZeros{};
  Hasher64 hasher;
  hasher.Update(frame.first(kChecksumOffset));
  hasher.Update(kZeros);
  hasher.Update(frame.subspan(kHeaderBytes));
  return hasher.Digest();
}

Status CheckEnvelope(const RawHeader& raw, uint64_t num_bytes) {
  if (raw.magic != kFrameMagic) {
    return {StatusCode::kCorruption, "not a frame: the magic is another's"};
  }
  if (raw.version != kFrameVersion) {
    return {StatusCode::kVersionUnsupported,
            "frame version " + std::to_string(raw.version) + "; this build reads " + std::to_string(kFrameVersion)};
  }
  if (raw.payload_bytes > kMaxPayloadBytes) {
    return {StatusCode::kCapacityExceeded, "a payload of " + std::to_string(raw.payload_bytes) +
                                               " bytes; the limit is " + std::to_string(kMaxPayloadBytes)};
  }
  const uint64_t announced = kHeaderBytes + raw.payload_bytes;
  if (num_bytes != announced) {
    return {num_bytes < announced ? StatusCode::kOutOfRange : StatusCode::kCorruption,
            "the frame announces " + std::to_string(announced) + " bytes, " + std::to_string(num_bytes) + " are there"};
  }
  return OkStatus();
}

Status CheckMeaning(const RawHeader& raw) {
  if (FrameTypeName(static_cast<FrameType>(raw.type)) == kUnknownType) {
    return {StatusCode::kInvalidArgument, "frame type " + std::to_string(raw.type) + " is unknown"};
  }
  KVANT_RETURN_IF_ERROR(CheckRange("flags", raw.flags, 0, 0));
  const bool has_layer = raw.type == static_cast<uint16_t>(FrameType::kLayer);
  return CheckRange("layer", raw.layer, 0, has_layer ? kMaxLayers - 1 : 0);
}

}  // namespace

std::string_view FrameTypeName(FrameType type) {
  switch (type) {
    case FrameType::kHello: return "hello";
    case FrameType::kHelloReply: return "hello reply";
    case FrameType::kLayer: return "layer";
    case FrameType::kFinish: return "finish";
    case FrameType::kDone: return "done";
    case FrameType::kError: return "error";
    case FrameType::kCancel: return "cancel";
    case FrameType::kAnswerRequest: return "answer request";
    case FrameType::kAnswerText: return "answer text";
    case FrameType::kAnswerEnd: return "answer end";
  }
  return kUnknownType;
}

Result<FrameView> OpenFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) {
    return Status(StatusCode::kOutOfRange, "a frame begins with " + std::to_string(kHeaderBytes) + " bytes, " +
                                               std::to_string(bytes.size()) + " are there");
  }
  const RawHeader raw = ReadHeader(bytes);
  KVANT_RETURN_IF_ERROR(CheckEnvelope(raw, bytes.size()));
  if (raw.checksum != ChecksumOf(bytes)) {
    return Status(StatusCode::kCorruption, "the frame's checksum does not match its bytes");
  }
  KVANT_RETURN_IF_ERROR(CheckMeaning(raw));
  return FrameView{{static_cast<FrameType>(raw.type), raw.layer, raw.payload_bytes, raw.session},
                   bytes.subspan(kHeaderBytes)};
}

Result<Buffer> AllocateFrame(const FrameHeader& header) {
  KVANT_ASSIGN_OR_RETURN(Buffer frame, Buffer::Allocate(kHeaderBytes + header.payload_bytes));
  ByteWriter writer(frame.bytes());
  writer.Put(kFrameMagic);
  writer.Put(kFrameVersion);
  writer.Put(static_cast<uint16_t>(header.type));
  writer.Put(uint32_t{0});
  writer.Put(header.layer);
  writer.Put(header.payload_bytes);
  writer.Put(header.session);
  writer.Put(uint64_t{0});
  return frame;
}

void SealFrame(std::span<std::byte> frame) { ByteWriter(frame.subspan(kChecksumOffset)).Put(ChecksumOf(frame)); }

}  // namespace kvant::wire
