#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/codec/precision.h"
#include "kvant/wire/frame.h"
#include "kvant/wire/identity.h"

namespace kvant::wire {

/// Order and meaning of the messages (docs/format/wire.md, "Session"); the frame version is the form of each.
inline constexpr uint32_t kProtocol = 1;

inline constexpr uint64_t kHelloBytes = 64;
inline constexpr uint64_t kVerdictBytes = 8;  ///< before the text
inline constexpr uint64_t kFinishBytes = 28;  ///< before the prompt's tokens
inline constexpr uint64_t kDoneBytes = 12;

struct Hello {
  uint32_t protocol = kProtocol;
  ModelIdentity model;
  codec::Precision precision;       ///< of what will be sent
  uint32_t num_prompt_tokens = 0;   ///< whose KV will be sent
  uint32_t num_context_tokens = 0;  ///< positions the request may need, prompt included
  friend bool operator==(const Hello&, const Hello&) = default;
};

/// The answer to a hello (kOk accepts, everything else refuses) and the body of an error frame (never kOk).
/// The text says why, and is empty with kOk.
struct Verdict {
  StatusCode code = StatusCode::kOk;
  std::string text;
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// Where the sender's sampler stands, so that the receiver's goes on with the same random numbers.
struct SamplerState {
  uint64_t seed = 0;
  uint64_t num_draws = 0;  ///< tokens drawn so far, the first one included
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// What decoding needs beside the KV. Logits are not sent: the first token is sampled where they are.
struct Finish {
  std::vector<int32_t> prompt_tokens;
  int32_t first_token = 0;
  uint32_t first_position = 0;  ///< of first_token: the number of prompt tokens, as a rule
  SamplerState sampler;
  friend bool operator==(const Finish&, const Finish&) = default;
};

struct Done {
  uint64_t received_bytes = 0;  ///< of the session's frames, Finish included
  uint32_t num_layers = 0;
  friend bool operator==(const Done&, const Done&) = default;
};

/// Encoders. Text becomes printable ASCII ('?' for other bytes) and is cut at kMaxTextBytes.
///
/// Requires values within the limits of frame.h, as the decoders below demand them
/// Errors   kOutOfMemory
Result<Buffer> EncodeHello(uint64_t session, const Hello& hello);
Result<Buffer> EncodeHelloReply(uint64_t session, const Verdict& verdict);
Result<Buffer> EncodeFinish(uint64_t session, const Finish& finish);
Result<Buffer> EncodeDone(uint64_t session, const Done& done);
Result<Buffer> EncodeError(uint64_t session, const Verdict& error);
Result<Buffer> EncodeCancel(uint64_t session);
/// `word` a precision word. Requires printable ASCII, 1 … kMaxTextBytes
Result<Buffer> EncodeSession(uint64_t session, const std::string& word);

/// Decoders of opened frames. What is accepted encodes to the same bytes again.
///
/// Requires the matching frame.header.type
/// Errors   kOutOfRange a payload of another size; kInvalidArgument, naming the field, a value beyond its limits;
///          kPrecisionUnsupported an unknown codec; kModelUnsupported a head dimension no codec takes
Result<Hello> DecodeHello(const FrameView& frame);
Result<Verdict> DecodeHelloReply(const FrameView& frame);
Result<Finish> DecodeFinish(const FrameView& frame);
Result<Done> DecodeDone(const FrameView& frame);
Result<Verdict> DecodeError(const FrameView& frame);
Status CheckCancel(const FrameView& frame);
Result<std::string> DecodeSession(const FrameView& frame);

}  // namespace kvant::wire
