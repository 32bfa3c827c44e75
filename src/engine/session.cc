#include "kvant/engine/session.h"

#include <algorithm>
#include <utility>

#include "engine/kept_head.h"
#include "kvant/base/check.h"
#include "kvant/wire/layer_frame.h"

namespace kvant::engine {
namespace {

Status CheckWord(const wire::FrameView& frame, const codec::Precision& kv) {
  const Result<std::string> decoded = wire::DecodeSession(frame);
  KVANT_RETURN_IF_ERROR(AsDamage(decoded.status()));
  const std::string& kept = *decoded;
  const std::string asked = codec::PrecisionWord(kv);
  return kept == asked ? OkStatus() : Status(StatusCode::kMismatch, "kept as " + kept + ", asked for as " + asked);
}

Status CheckLayer(const wire::LayerView& view, uint32_t layer, const wire::Hello& hello, const codec::Precision& kv) {
  if (view.layer != layer || view.layout.shape != hello.model.shape ||
      view.layout.split.num_positions() != hello.num_prompt_tokens) {
    return {StatusCode::kCorruption, "not layer " + std::to_string(layer) + " of what the hello says"};
  }
  const uint32_t head_dim = hello.model.shape.head_dim;
  if (kv.pairs && view.layout.pairs && !view.layout.pairs->IsOf(*kv.pairs, head_dim)) {
    return {StatusCode::kMismatch, "kept in pages of another format than " + codec::PrecisionWord(kv) + " has"};
  }
  return OkStatus();
}

Status CheckTokens(const wire::Finish& finish, const wire::Hello& hello, uint32_t vocab_size) {
  const bool known = std::all_of(finish.prompt_tokens.begin(), finish.prompt_tokens.end(),
                                 [&](int32_t token) { return static_cast<uint32_t>(token) < vocab_size; });
  return known && finish.prompt_tokens.size() == hello.num_prompt_tokens
             ? OkStatus()
             : Status(StatusCode::kCorruption, "its tokens are not those of its layers");
}

}  // namespace

Status CheckPlace(const std::string& path) { return NewFile::Create(path).status(); }

Status CheckSessionPrecision(const codec::Precision& kv) {
  return kv.is_progressive()
             ? Status(StatusCode::kPrecisionUnsupported,
                      "a session is not kept in the progressive code, which " + codec::PrecisionWord(kv) + " is")
             : OkStatus();
}

Status CheckSession(const std::string& path, const codec::Precision& kv) {
  KVANT_RETURN_IF_ERROR(CheckSessionPrecision(kv));
  return CheckPlace(path);
}

Status SaveSession(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                   const cache::Sequence& sequence, std::span<const int32_t> tokens) {
  KVANT_CHECK(tokens.size() == sequence.num_tokens() && !tokens.empty(), "a token for each position");
  KVANT_RETURN_IF_ERROR(CheckSessionPrecision(sequence.precision()));
  const auto count = static_cast<uint32_t>(tokens.size());
  KVANT_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  KVANT_RETURN_IF_ERROR(WriteKeptHead(engine, tokenizer, sequence.precision(), count, file));
  for (uint32_t layer = 0; layer < sequence.shape().num_layers; ++layer) {
    const cache::LayerCache& cache = sequence.layer(layer);
    KVANT_ASSIGN_OR_RETURN(wire::BlockFrame frame, wire::AllocateLayer(kKeptSession, layer, cache.block_layout()));
    cache.ExportBlock(frame.block(), nullptr);
    KVANT_RETURN_IF_ERROR(file.Write(std::move(frame).Seal()));
  }
  KVANT_RETURN_IF_ERROR(file.Write(
      wire::EncodeFinish(kKeptSession, {.prompt_tokens = {tokens.begin(), tokens.end()}, .first_position = count})));
  return file.Finish();
}

Result<Session> LoadSession(const std::string& path, const Engine& engine, const Tokenizer& tokenizer,
                            const codec::Precision& kv, cache::MemoryAccount* account) {
  KVANT_ASSIGN_OR_RETURN(FramesInOrder file, FramesInOrder::Open(path));
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView kept, file.Next(wire::FrameType::kSession));
  const Status word = CheckWord(kept, kv);
  KVANT_ASSIGN_OR_RETURN(const wire::Hello hello, TakeKeptHello(path, engine, tokenizer, file));
  KVANT_RETURN_IF_ERROR(word.WithContext(path));
  KVANT_ASSIGN_OR_RETURN(cache::Sequence sequence, engine.NewSequence(kv, account));
  Session session{std::move(sequence), {}};
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    const std::string where = path + ", layer " + std::to_string(layer);
    KVANT_ASSIGN_OR_RETURN(const wire::FrameView frame, file.Next(wire::FrameType::kLayer));
    const Result<wire::LayerView> view = wire::DecodeLayer(frame);
    KVANT_RETURN_IF_ERROR(AsDamage(view.status()).WithContext(where));
    KVANT_RETURN_IF_ERROR(CheckLayer(*view, layer, hello, kv).WithContext(where));
    KVANT_RETURN_IF_ERROR(session.sequence.layer(layer).AdoptBlock(view->layout, view->block).WithContext(where));
  }
  KVANT_ASSIGN_OR_RETURN(const wire::FrameView last, file.Next(wire::FrameType::kFinish));
  Result<wire::Finish> finish = wire::DecodeFinish(last);
  KVANT_RETURN_IF_ERROR(AsDamage(finish.status()).WithContext(path));
  KVANT_RETURN_IF_ERROR(CheckTokens(*finish, hello, engine.model().params().vocab_size).WithContext(path));
  KVANT_RETURN_IF_ERROR(file.End());
  session.tokens = std::move(finish->prompt_tokens);
  return session;
}

}  // namespace kvant::engine
