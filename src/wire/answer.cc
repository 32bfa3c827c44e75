#include "kvant/wire/answer.h"

#include <algorithm>
#include <cmath>

#include "wire/envelope.h"

namespace kvant::wire {
namespace {

Status CheckNumber(const char* field, double value, double low) {
  return std::isfinite(value) && value >= low
             ? OkStatus()
             : Status(StatusCode::kInvalidArgument, std::string(field) + " is not a number of its range");
}

std::string TextOf(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  std::transform(bytes.begin(), bytes.end(), text.begin(), [](std::byte byte) { return static_cast<char>(byte); });
  return text;
}

// The number of leading bits that are set tells how many bytes a UTF-8 character has.
size_t FollowersOf(unsigned char lead) {
  if (lead < 0x80) {
    return 0;
  }
  return lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : lead >= 0xF0 && lead < 0xF5 ? 3 : SIZE_MAX;
}

// Without overlong forms, surrogates, and anything beyond U+10FFFF: they are seen in the second byte.
bool AllowsSecond(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xE0: return second >= 0xA0;
    case 0xED: return second < 0xA0;
    case 0xF0: return second >= 0x90;
    case 0xF4: return second < 0x90;
    default: return true;
  }
}

bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at++]);
    const size_t followers = FollowersOf(lead);
    if (followers > text.size() - at) {
      return false;
    }
    if (followers > 0 && !AllowsSecond(lead, static_cast<unsigned char>(text[at]))) {
      return false;
    }
    const std::string_view rest = text.substr(at, followers);
    if (!std::all_of(rest.begin(), rest.end(), [](char c) { return (c & 0xC0) == 0x80; })) {
      return false;
    }
    at += followers;
  }
  return true;
}

Status CheckRequest(const AnswerRequest& request, uint32_t flags) {
  KVANT_RETURN_IF_ERROR(CheckRange("max_tokens", request.max_tokens, 1, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("flags", flags, 0, 1));
  KVANT_RETURN_IF_ERROR(CheckNumber("temperature", request.temperature, 0));
  KVANT_RETURN_IF_ERROR(CheckNumber("top_p", request.top_p, 0));
  KVANT_RETURN_IF_ERROR(CheckNumber("min_p", request.min_p, 0));
  return CheckNumber("repeat_penalty", request.repeat_penalty, 0);
}

Status CheckEnd(const AnswerEnd& end) {
  KVANT_RETURN_IF_ERROR(CheckRange("reason", end.reason, 0, 1));
  KVANT_RETURN_IF_ERROR(CheckRange("tokens", end.tokens, 0, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckNumber("payload bits", end.payload_bits, 0));
  KVANT_RETURN_IF_ERROR(CheckNumber("effective bits", end.effective_bits, 0));
  for (const double tokens : end.tier_tokens) {
    KVANT_RETURN_IF_ERROR(CheckNumber("tier tokens", tokens, 0));
  }
  KVANT_RETURN_IF_ERROR(CheckRange("received encoded", end.received_encoded, 0, kMaxTokens));
  return CheckRange("received exact", end.received_exact, 0, kMaxTokens);
}

}  // namespace

Result<Buffer> EncodeAnswerRequest(uint64_t session, const AnswerRequest& request) {
  const uint64_t num_bytes = kAnswerRequestBytes + request.grammar.size();
  return EncodeFrame(FrameType::kAnswerRequest, session, num_bytes, [&](ByteWriter& writer) {
    writer.Put(request.version);
    writer.Put(request.max_tokens);
    writer.Put(uint32_t{request.ignore_eos});
    writer.Put(request.temperature);
    writer.Put(request.top_k);
    writer.Put(request.top_p);
    writer.Put(request.min_p);
    writer.Put(request.repeat_penalty);
    writer.Put(request.repeat_last_n);
    writer.Put(request.seed);
    writer.Put(static_cast<uint32_t>(request.grammar.size()));
    writer.PutBytes(std::as_bytes(std::span(request.grammar)));
  });
}

Result<AnswerRequest> DecodeAnswerRequest(const FrameView& frame) {
  if (frame.payload.size() < kAnswerRequestBytes) {
    return CheckPayloadBytes(frame, kAnswerRequestBytes);
  }
  ByteReader reader(frame.payload);
  AnswerRequest request;
  request.version = reader.Take<uint32_t>();
  if (request.version != kAnswerVersion) {
    return Status(StatusCode::kVersionUnsupported, "answer version " + std::to_string(request.version) +
                                                       "; this build knows " + std::to_string(kAnswerVersion));
  }
  request.max_tokens = reader.Take<uint32_t>();
  const auto flags = reader.Take<uint32_t>();
  request.ignore_eos = flags == 1;
  request.temperature = reader.Take<float>();
  request.top_k = reader.Take<int32_t>();
  request.top_p = reader.Take<float>();
  request.min_p = reader.Take<float>();
  request.repeat_penalty = reader.Take<float>();
  request.repeat_last_n = reader.Take<int32_t>();
  request.seed = reader.Take<uint32_t>();
  const auto grammar_bytes = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckRequest(request, flags));
  KVANT_RETURN_IF_ERROR(CheckRange("grammar bytes", grammar_bytes, 0, kMaxGrammarBytes));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kAnswerRequestBytes + grammar_bytes));
  request.grammar = TextOf(reader.rest());
  return request;
}

Result<Buffer> EncodeAnswerText(uint64_t session, const AnswerText& text) {
  const uint64_t num_bytes = kAnswerTextBytes + text.text.size();
  return EncodeFrame(FrameType::kAnswerText, session, num_bytes, [&](ByteWriter& writer) {
    writer.Put(text.microseconds);
    writer.Put(text.tokens);
    writer.Put(static_cast<uint32_t>(text.text.size()));
    writer.PutBytes(std::as_bytes(std::span(text.text)));
  });
}

Result<AnswerText> DecodeAnswerText(const FrameView& frame) {
  if (frame.payload.size() < kAnswerTextBytes) {
    return CheckPayloadBytes(frame, kAnswerTextBytes);
  }
  ByteReader reader(frame.payload);
  AnswerText text;
  text.microseconds = reader.Take<uint64_t>();
  text.tokens = reader.Take<uint32_t>();
  const auto text_bytes = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("tokens", text.tokens, 0, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckRange("text bytes", text_bytes, 1, kMaxAnswerTextBytes));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kAnswerTextBytes + text_bytes));
  text.text = TextOf(reader.rest());
  if (!IsUtf8(text.text)) {
    return Status(StatusCode::kInvalidArgument, "text that is not whole UTF-8 characters");
  }
  return text;
}

Result<Buffer> EncodeAnswerEnd(uint64_t session, const AnswerEnd& end) {
  return EncodeFrame(FrameType::kAnswerEnd, session, kAnswerEndBytes, [&](ByteWriter& writer) {
    writer.Put(end.reason);
    writer.Put(end.tokens);
    writer.Put(end.decode_microseconds);
    writer.Put(end.kv_bytes);
    writer.Put(end.kv_bytes_fp16);
    writer.Put(end.kv_bytes_allocated);
    writer.Put(end.payload_bits);
    writer.Put(end.effective_bits);
    for (const double tokens : end.tier_tokens) {
      writer.Put(tokens);
    }
    writer.Put(end.received_encoded);
    writer.Put(end.received_exact);
  });
}

Result<AnswerEnd> DecodeAnswerEnd(const FrameView& frame) {
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kAnswerEndBytes));
  ByteReader reader(frame.payload);
  AnswerEnd end;
  end.reason = reader.Take<uint32_t>();
  end.tokens = reader.Take<uint32_t>();
  end.decode_microseconds = reader.Take<uint64_t>();
  end.kv_bytes = reader.Take<uint64_t>();
  end.kv_bytes_fp16 = reader.Take<uint64_t>();
  end.kv_bytes_allocated = reader.Take<uint64_t>();
  end.payload_bits = reader.Take<double>();
  end.effective_bits = reader.Take<double>();
  for (double& tokens : end.tier_tokens) {
    tokens = reader.Take<double>();
  }
  end.received_encoded = reader.Take<uint32_t>();
  end.received_exact = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckEnd(end));
  return end;
}

}  // namespace kvant::wire
