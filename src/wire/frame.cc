#include "kvant/wire/frame.h"

#include <array>
#include <string>
#include <utility>

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

Status CheckWhole(uint64_t num_bytes) {
  if (num_bytes >= kHeaderBytes) {
    return OkStatus();
  }
  return {StatusCode::kOutOfRange, "a frame begins with " + std::to_string(kHeaderBytes) + " bytes, " +
                                       std::to_string(num_bytes) + " are there"};
}

Status CheckChecksum(const RawHeader& raw, uint64_t computed) {
  return raw.checksum == computed ? OkStatus()
                                  : Status(StatusCode::kCorruption, "the frame's checksum does not match its bytes");
}

Status CheckType(const RawHeader& raw) {
  if (FrameTypeName(static_cast<FrameType>(raw.type)) == kUnknownType) {
    return {StatusCode::kInvalidArgument, "frame type " + std::to_string(raw.type) + " is unknown"};
  }
  return OkStatus();
}

Status CheckFlags(const RawHeader& raw) { return CheckRange("flags", raw.flags, 0, 0); }

Status CheckLayerField(const RawHeader& raw) {
  const auto type = static_cast<FrameType>(raw.type);
  const bool has_layer = type == FrameType::kLayer || type == FrameType::kUpgradeRequest ||
                         type == FrameType::kUpgrade || type == FrameType::kMaps;
  return CheckRange("layer", raw.layer, 0, has_layer ? kMaxLayers - 1 : 0);
}

FrameHeader HeaderOf(const RawHeader& raw) {
  return {static_cast<FrameType>(raw.type), raw.layer, raw.payload_bytes, raw.session};
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
    case FrameType::kUpgradeOffer: return "upgrade offer";
    case FrameType::kUpgradeRequest: return "upgrade request";
    case FrameType::kUpgrade: return "upgrade";
    case FrameType::kSession: return "session";
    case FrameType::kMaps: return "maps";
  }
  return kUnknownType;
}

Result<FrameView> OpenFrame(std::span<const std::byte> bytes) {
  KVANT_RETURN_IF_ERROR(CheckWhole(bytes.size()));
  const RawHeader raw = ReadHeader(bytes);
  KVANT_RETURN_IF_ERROR(CheckEnvelope(raw, bytes.size()));
  KVANT_RETURN_IF_ERROR(CheckChecksum(raw, ChecksumOf(bytes)));
  KVANT_RETURN_IF_ERROR(CheckType(raw));
  KVANT_RETURN_IF_ERROR(CheckFlags(raw));
  KVANT_RETURN_IF_ERROR(CheckLayerField(raw));
  return FrameView{HeaderOf(raw), bytes.subspan(kHeaderBytes)};
}

std::optional<uint64_t> AnnouncedBytes(std::span<const std::byte> header) {
  const RawHeader raw = ReadHeader(header);
  const uint64_t announced = kHeaderBytes + raw.payload_bytes;
  return CheckEnvelope(raw, announced).ok() ? std::optional(announced) : std::nullopt;
}

FrameExamination ExamineFrame(std::span<const std::byte> bytes) {
  FrameExamination found;
  const auto note = [&](Status status) {
    if (!status.ok()) {
      found.faults.push_back(std::move(status));
    }
    return found.faults.empty();
  };
  if (!note(CheckWhole(bytes.size()))) {
    return found;
  }
  const RawHeader raw = ReadHeader(bytes);
  found.version = raw.version;
  found.flags = raw.flags;
  found.header = HeaderOf(raw);
  found.stored_checksum = raw.checksum;
  found.computed_checksum = ChecksumOf(bytes);
  if (!note(CheckEnvelope(raw, bytes.size()))) {
    return found;
  }
  note(CheckChecksum(raw, found.computed_checksum));
  note(CheckType(raw));
  note(CheckFlags(raw));
  note(CheckLayerField(raw));
  if (CheckType(raw).ok()) {
    found.view = FrameView{found.header, bytes.subspan(kHeaderBytes)};
  }
  return found;
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
