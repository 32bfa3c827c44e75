#include "kvant/engine/tokenizer.h"

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <llama.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "kvant/base/check.h"
#include "kvant/base/hash.h"
#include "kvant/engine/backend.h"

namespace kvant::engine {
namespace {

std::string TextOf(const llama_vocab* vocab, int32_t token) {
  return token < 0 ? std::string() : std::string(llama_vocab_get_text(vocab, token));
}

std::string HexByte(char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return {kDigits[value >> 4], kDigits[value & 15]};
}

uint64_t FingerprintOf(const llama_vocab* vocab) {
  Hasher64 hasher;
  for (int32_t token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const std::string_view text = llama_vocab_get_text(vocab, token);
    hasher.Update(std::as_bytes(std::span(text.data(), text.size() + 1)));  // with its end, so that borders count
  }
  return hasher.Digest();
}

// libllama drops bytes that a byte-level vocabulary has no token for. The first one that is lost, or npos.
size_t FindLostByte(const llama_vocab* vocab, std::string_view text, std::span<const int32_t> tokens) {
  if (llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_BPE) {
    return std::string_view::npos;  // SentencePiece has byte tokens for everything (CheckGguf), and adds blanks
  }
  std::string joined(text.size() + 64 * 8, '\0');
  const int32_t length =
      llama_detokenize(vocab, tokens.data(), static_cast<int32_t>(tokens.size()), joined.data(),
                       static_cast<int32_t>(joined.size()), /*remove_special=*/true, /*unparse_special=*/true);
  joined.resize(length < 0 ? 0 : static_cast<size_t>(length));
  const auto lost = std::mismatch(text.begin(), text.end(), joined.begin(), joined.end()).first;
  return lost == text.end() ? std::string_view::npos : static_cast<size_t>(lost - text.begin());
}

jinja::value MessageValue(const ChatMessage& message) {
  auto value = jinja::mk_val<jinja::value_object>();
  value->insert("role", jinja::mk_val<jinja::value_string>(message.role));
  value->insert("content", jinja::mk_val<jinja::value_string>(message.content));
  return value;
}

std::string Render(const std::string& source, std::span<const ChatMessage> messages, const std::string& bos_text,
                   const std::string& eos_text) {
  jinja::lexer lexer;
  jinja::program program = jinja::parse_from_tokens(lexer.tokenize(source));
  jinja::context context(source);
  auto list = jinja::mk_val<jinja::value_array>();
  for (const ChatMessage& message : messages) {
    list->push_back(MessageValue(message));
  }
  context.set_val("messages", list);
  context.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(true));
  context.set_val("bos_token", jinja::mk_val<jinja::value_string>(bos_text));
  context.set_val("eos_token", jinja::mk_val<jinja::value_string>(eos_text));
  jinja::runtime runtime(context);
  return jinja::runtime::gather_string_parts(runtime.execute(program))->as_string().str();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path, const GgufInfo& info) {
  SilenceGgml();
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.n_gpu_layers = 0;
  tokenizer->model_ = llama_model_load_from_file(path.c_str(), params);
  if (tokenizer->model_ == nullptr) {
    return Status(StatusCode::kCorruption, path + ": libllama refuses the vocabulary: " + TakeGgmlError());
  }
  tokenizer->path_ = path;
  tokenizer->vocab_ = llama_model_get_vocab(tokenizer->model_);
  tokenizer->fingerprint_ = FingerprintOf(tokenizer->vocab_);
  tokenizer->template_ = info.tokenizer.chat_template;
  tokenizer->bos_text_ = TextOf(tokenizer->vocab_, llama_vocab_bos(tokenizer->vocab_));
  tokenizer->eos_text_ = TextOf(tokenizer->vocab_, llama_vocab_eos(tokenizer->vocab_));
  return tokenizer;
}

Tokenizer::~Tokenizer() { llama_model_free(model_); }

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  if (const size_t at = FindInvalidUtf8(text); at != std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument, "the text is not valid UTF-8 at byte " + std::to_string(at));
  }
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 2) {
    return Status(StatusCode::kInvalidArgument, "a text of " + std::to_string(text.size()) + " bytes is too long");
  }
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> tokens(text.size() + 8);  // a token is at least a byte, and there are a few special ones
  int32_t count = llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()), true,
                                 parse_special);
  if (count < 0) {
    tokens.resize(static_cast<size_t>(-count));
    count = llama_tokenize(vocab_, text.data(), length, tokens.data(), -count, true, parse_special);
  }
  KVANT_CHECK(count >= 0, "the second call had the room the first one asked for");
  tokens.resize(static_cast<size_t>(count));
  if (const size_t at = FindLostByte(vocab_, text, tokens); at != std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument, "the model's vocabulary has no token for the text at byte " +
                                                    std::to_string(at) + " (0x" + HexByte(text[at]) + ")");
  }
  return tokens;
}

std::string Tokenizer::Piece(int32_t token) const {
  std::string piece(64, '\0');
  const auto convert = [&] {
    return llama_token_to_piece(vocab_, token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
  };
  int32_t length = convert();
  if (length < 0) {
    piece.resize(static_cast<size_t>(-length));
    length = convert();
  }
  piece.resize(static_cast<size_t>(length));
  return piece;
}

bool Tokenizer::IsEndOfGeneration(int32_t token) const { return llama_vocab_is_eog(vocab_, token); }

Result<std::string> Tokenizer::ApplyChatTemplate(std::span<const ChatMessage> messages) const {
  if (template_.empty()) {
    return Status(StatusCode::kNotFound, path_ + ": the model has no chat template");
  }
  try {
    return Render(template_, messages, bos_text_, eos_text_);
  } catch (const std::exception& error) {  // the interpreter's way of reporting; it ends here
    return Status(StatusCode::kModelUnsupported, path_ + ": the chat template fails: " + error.what());
  }
}

}  // namespace kvant::engine
