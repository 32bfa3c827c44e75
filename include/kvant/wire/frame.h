#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::wire {

/// A frame is one message: a fixed header and a payload, little-endian, one checksum over both.
/// Format: docs/format/wire.md
///
///   offset  bytes  field
///   0       4      magic "KVNT"
///   4       2      version
///   6       2      type
///   8       4      flags, 0 in version 1
///   12      4      layer, 0 except in frames of one layer
///   16      8      payload bytes
///   24      8      session
///   32      8      checksum: XXH3-64 of the whole frame with this field 0
///   40      …      payload
inline constexpr uint32_t kFrameMagic = 0x544E564BU;  ///< "KVNT" as it lies in memory
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kHeaderBytes = 40;

/// Limits every decoder enforces before anything else. What a session may send is narrower: its handshake says it.
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 36;
inline constexpr uint32_t kMaxTokens = 1U << 24;
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxKvHeads = 1024;
inline constexpr uint32_t kMaxTextBytes = 4096;

/// The numbers are stable for life.
enum class FrameType : uint16_t {
  kHello = 1,       ///< sender to receiver: what will come
  kHelloReply = 2,  ///< receiver to sender: accepted, or why not
  kLayer = 3,       ///< sender to receiver: one layer's KV
  kFinish = 4,      ///< sender to receiver: all that decoding needs beside the KV
  kDone = 5,        ///< receiver to sender: everything is verified and adopted
  kError = 6,       ///< either way: the session has failed, and why
  kCancel = 7,      ///< either way: the session is no longer wanted
  // After done, where the answer goes back to the sender (answer.h).
  kAnswerRequest = 16,  ///< sender to receiver: how to go on
  kAnswerText = 17,     ///< receiver to sender
  kAnswerEnd = 18,      ///< receiver to sender: why the answer ended, and what it took
  // After done, where tokens of a progressive prompt may be raised (upgrade.h).
  kUpgradeOffer = 19,    ///< sender to receiver, before the answer request: how far
  kUpgradeRequest = 20,  ///< receiver to sender: which tokens of a layer
  kUpgrade = 21,         ///< sender to receiver: their missing planes
  kSession = 22,         ///< in files alone: the precision that a kept session goes on with (docs/format/session.md)
  kMaps = 23,            ///< in files alone: the maps of a layer that are the model's (docs/format/profile.md)
};
inline constexpr size_t kFrameTypeNumbers = 24;  ///< every type's number is below

std::string_view FrameTypeName(FrameType type);

struct FrameHeader {
  FrameType type{};
  uint32_t layer = 0;
  uint64_t payload_bytes = 0;
  uint64_t session = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

/// A verified frame inside the bytes it was received in.
struct FrameView {
  FrameHeader header;
  std::span<const std::byte> payload;
};

/// Verify the envelope of a received message: everything but the meaning of its payload.
///
/// Errors  in this order
///         kOutOfRange          fewer bytes than a header, or than the header announces
///         kCorruption          the magic is another's
///         kVersionUnsupported  a version this build does not read
///         kCapacityExceeded    a payload beyond kMaxPayloadBytes
///         kCorruption          bytes after the payload; a checksum that does not match
///         kInvalidArgument     an unknown type or flag, a layer where none belongs
/// Cost    one pass over the bytes, no allocation
Result<FrameView> OpenFrame(std::span<const std::byte> bytes);

/// How long the frame is whose header this is: where frames stand one after another, the next one begins there.
/// Requires a whole header. Nothing where it is none that this build can measure: magic, version, size
std::optional<uint64_t> AnnouncedBytes(std::span<const std::byte> header);

/// What bytes say of themselves before any of it is believed: for reports about damaged frames.
struct FrameExamination {
  uint16_t version = 0;
  uint32_t flags = 0;
  FrameHeader header;  ///< as it lies there: an unknown type is kept
  uint64_t stored_checksum = 0;
  uint64_t computed_checksum = 0;  ///< of all the bytes
  /// Every one, where OpenFrame stops at the first; of bytes that are no whole frame of this version that one alone.
  std::vector<Status> faults;
  /// Where the frame is whole and of a known type, checksum, flags and layer right or not.
  std::optional<FrameView> view;
};
FrameExamination ExamineFrame(std::span<const std::byte> bytes);

}  // namespace kvant::wire
