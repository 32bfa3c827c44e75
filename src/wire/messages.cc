#include "kvant/wire/messages.h"

#include <algorithm>

#include "wire/envelope.h"

namespace kvant::wire {
namespace {

constexpr char kFirstPrintable = ' ';
constexpr char kLastPrintable = '~';

bool IsPrintable(char c) { return c >= kFirstPrintable && c <= kLastPrintable; }

std::string Printable(std::string text) {
  text.resize(std::min<size_t>(text.size(), kMaxTextBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return !IsPrintable(c); }, '?');
  return text;
}

Result<Buffer> EncodeVerdict(FrameType type, uint64_t session, const Verdict& verdict) {
  const std::string text = Printable(verdict.text);
  return EncodeFrame(type, session, kVerdictBytes + text.size(), [&](ByteWriter& writer) {
    writer.Put(static_cast<uint32_t>(verdict.code));
    writer.Put(static_cast<uint32_t>(text.size()));
    writer.PutBytes(std::as_bytes(std::span(text)));
  });
}

Result<Verdict> DecodeVerdict(const FrameView& frame, StatusCode first_code) {
  if (frame.payload.size() < kVerdictBytes) {
    return CheckPayloadBytes(frame, kVerdictBytes);
  }
  ByteReader reader(frame.payload);
  const auto code = reader.Take<uint32_t>();
  const auto text_bytes = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(
      CheckRange("status code", code, static_cast<uint64_t>(first_code), static_cast<uint64_t>(StatusCode::kInternal)));
  KVANT_RETURN_IF_ERROR(CheckRange("text bytes", text_bytes, 0, code == 0 ? 0 : kMaxTextBytes));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kVerdictBytes + text_bytes));
  Verdict verdict;
  verdict.code = static_cast<StatusCode>(code);
  verdict.text.resize(text_bytes);
  std::transform(reader.rest().begin(), reader.rest().end(), verdict.text.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  if (!std::all_of(verdict.text.begin(), verdict.text.end(), IsPrintable)) {
    return Status(StatusCode::kInvalidArgument, "text with bytes that are not printable ASCII");
  }
  return verdict;
}

}  // namespace

Result<Buffer> EncodeHelloReply(uint64_t session, const Verdict& verdict) {
  return EncodeVerdict(FrameType::kHelloReply, session, verdict);
}
Result<Verdict> DecodeHelloReply(const FrameView& frame) { return DecodeVerdict(frame, StatusCode::kOk); }

Result<Buffer> EncodeError(uint64_t session, const Verdict& error) {
  return EncodeVerdict(FrameType::kError, session, error);
}
Result<Verdict> DecodeError(const FrameView& frame) { return DecodeVerdict(frame, StatusCode::kInvalidArgument); }

Result<Buffer> EncodeFinish(uint64_t session, const Finish& finish) {
  const std::span<const std::byte> tokens = std::as_bytes(std::span(finish.prompt_tokens));
  return EncodeFrame(FrameType::kFinish, session, kFinishBytes + tokens.size(), [&](ByteWriter& writer) {
    writer.Put(finish.sampler.seed);
    writer.Put(finish.sampler.num_draws);
    writer.Put(finish.first_token);
    writer.Put(finish.first_position);
    writer.Put(static_cast<uint32_t>(finish.prompt_tokens.size()));
    writer.PutBytes(tokens);
  });
}

Result<Finish> DecodeFinish(const FrameView& frame) {
  if (frame.payload.size() < kFinishBytes) {
    return CheckPayloadBytes(frame, kFinishBytes);
  }
  ByteReader reader(frame.payload);
  Finish finish;
  finish.sampler.seed = reader.Take<uint64_t>();
  finish.sampler.num_draws = reader.Take<uint64_t>();
  finish.first_token = reader.Take<int32_t>();
  finish.first_position = reader.Take<uint32_t>();
  const auto num_tokens = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("prompt tokens", num_tokens, 1, kMaxTokens));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kFinishBytes + uint64_t{4} * num_tokens));
  KVANT_RETURN_IF_ERROR(CheckRange("first_position", finish.first_position, 0, kMaxTokens));
  finish.prompt_tokens.resize(num_tokens);
  for (int32_t& token : finish.prompt_tokens) {
    token = reader.Take<int32_t>();
  }
  const auto negative = [](int32_t token) { return token < 0; };
  if (negative(finish.first_token) || std::any_of(finish.prompt_tokens.begin(), finish.prompt_tokens.end(), negative)) {
    return Status(StatusCode::kInvalidArgument, "a negative token id");
  }
  return finish;
}

Result<Buffer> EncodeDone(uint64_t session, const Done& done) {
  return EncodeFrame(FrameType::kDone, session, kDoneBytes, [&](ByteWriter& writer) {
    writer.Put(done.received_bytes);
    writer.Put(done.num_layers);
  });
}

Result<Done> DecodeDone(const FrameView& frame) {
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kDoneBytes));
  ByteReader reader(frame.payload);
  Done done;
  done.received_bytes = reader.Take<uint64_t>();
  done.num_layers = reader.Take<uint32_t>();
  return done;
}

Result<Buffer> EncodeCancel(uint64_t session) {
  return EncodeFrame(FrameType::kCancel, session, 0, [](ByteWriter&) {});
}
Status CheckCancel(const FrameView& frame) { return CheckPayloadBytes(frame, 0); }

Result<Buffer> EncodeSession(uint64_t session, const std::string& word) {
  return EncodeFrame(FrameType::kSession, session, sizeof(uint32_t) + word.size(), [&](ByteWriter& writer) {
    writer.Put(static_cast<uint32_t>(word.size()));
    writer.PutBytes(std::as_bytes(std::span(word)));
  });
}

Result<std::string> DecodeSession(const FrameView& frame) {
  if (frame.payload.size() < sizeof(uint32_t)) {
    return CheckPayloadBytes(frame, sizeof(uint32_t));
  }
  ByteReader reader(frame.payload);
  const auto size = reader.Take<uint32_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("precision bytes", size, 1, kMaxTextBytes));
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, sizeof(uint32_t) + size));
  std::string word;
  for (const std::byte byte : reader.rest()) {
    const auto character = std::to_integer<char>(byte);
    if (character < 0x20 || character > 0x7E) {
      return Status(StatusCode::kInvalidArgument, "precision is not printable");
    }
    word.push_back(character);
  }
  return word;
}

}  // namespace kvant::wire
