#include "engine/kept_head.h"

#include "engine/identity.h"

namespace kvant::engine {

Status WriteKeptHead(const Engine& engine, const Tokenizer& tokenizer, const codec::Precision& precision,
                     uint32_t num_tokens, NewFile& file) {
  KVANT_RETURN_IF_ERROR(file.Write(wire::EncodeSession(kKeptSession, codec::PrecisionWord(precision))));
  return file.Write(wire::EncodeHello(kKeptSession, {.model = IdentityOf(engine, tokenizer),
                                                     .precision = precision,
                                                     .num_prompt_tokens = num_tokens,
                                                     .num_context_tokens = num_tokens}));
}

Result<wire::Hello> TakeKeptHello(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                                  FramesInOrder& file) {
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView frame, file.Next(wire::FrameType::kHello));
  Result<wire::Hello> hello = wire::DecodeHello(frame);
  KVANT_RETURN_IF_ERROR(AsDamage(hello.status()).WithContext(path));
  const std::string difference = wire::DifferenceOf(hello->model, IdentityOf(engine, tokenizer));
  if (!difference.empty()) {
    return Status(StatusCode::kMismatch,
                  path + ": kept of another model (sender is the file, receiver this model): " + difference);
  }
  return hello;
}

}  // namespace kvant::engine
