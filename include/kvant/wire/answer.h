#pragma once

#include <cstdint>
#include <string>

#include "kvant/base/buffer.h"
#include "kvant/base/status.h"
#include "kvant/wire/frame.h"

namespace kvant::wire {

/// What follows a transfer when the answer goes back to the sender (docs/format/answer.md).
inline constexpr uint32_t kAnswerVersion = 1;

inline constexpr uint64_t kAnswerRequestBytes = 44;  ///< before the grammar
inline constexpr uint64_t kAnswerTextBytes = 16;     ///< before the text
inline constexpr uint64_t kAnswerEndBytes = 96;
inline constexpr uint32_t kMaxGrammarBytes = 1U << 20;
inline constexpr uint32_t kMaxAnswerTextBytes = 1U << 16;

/// How to go on from the transferred prompt. Numbers of the sampler are checked by whoever samples.
struct AnswerRequest {
  uint32_t version = kAnswerVersion;
  uint32_t max_tokens = 0;  ///< the first token, which came with the prompt, counts
  bool ignore_eos = false;
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 0;
  float min_p = 0;
  float repeat_penalty = 0;
  int32_t repeat_last_n = 0;
  uint32_t seed = 0;
  std::string grammar;  ///< GBNF; empty: none
  friend bool operator==(const AnswerRequest&, const AnswerRequest&) = default;
};

/// Whole UTF-8 characters, in order.
struct AnswerText {
  uint64_t microseconds = 0;  ///< since the request arrived
  uint32_t tokens = 0;        ///< of the answer so far
  std::string text;           ///< not empty
  friend bool operator==(const AnswerText&, const AnswerText&) = default;
};

/// The last message of a session.
struct AnswerEnd {
  uint32_t reason = 0;  ///< 0: the model ended the answer; 1: max_tokens did
  uint32_t tokens = 0;
  uint64_t decode_microseconds = 0;  ///< from the first token to the last one
  uint64_t kv_bytes = 0;             ///< in use at the end
  uint64_t kv_bytes_fp16 = 0;
  uint64_t kv_bytes_allocated = 0;
  double payload_bits = 0;  ///< a cache element
  double effective_bits = 0;
  double tier_tokens[4] = {};     ///< fp16, int8, int4, dropped: means over layers and KV heads
  uint32_t received_encoded = 0;  ///< prompt tokens that came at the precision of the wire
  uint32_t received_exact = 0;    ///< prompt tokens that came at fp16
  friend bool operator==(const AnswerEnd&, const AnswerEnd&) = default;
};

/// Encoders. Requires values within the limits that the decoders below demand. Errors  kOutOfMemory
Result<Buffer> EncodeAnswerRequest(uint64_t session, const AnswerRequest& request);
Result<Buffer> EncodeAnswerText(uint64_t session, const AnswerText& text);
Result<Buffer> EncodeAnswerEnd(uint64_t session, const AnswerEnd& end);

/// Decoders of opened frames. What is accepted encodes to the same bytes again.
///
/// Requires the matching frame.header.type
/// Errors   kOutOfRange a payload of another size; kVersionUnsupported; kInvalidArgument, naming the field
Result<AnswerRequest> DecodeAnswerRequest(const FrameView& frame);
Result<AnswerText> DecodeAnswerText(const FrameView& frame);
Result<AnswerEnd> DecodeAnswerEnd(const FrameView& frame);

}  // namespace kvant::wire
