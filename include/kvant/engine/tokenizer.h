#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/engine/gguf_check.h"

struct llama_model;
struct llama_vocab;

namespace kvant::engine {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// Text to tokens and back, by libllama's vocabulary of the model file; chat templates by the file's own Jinja text.
///
/// Threads  immutable after Load
class Tokenizer {
 public:
  /// `info` is what CheckGguf said of `path`.
  /// Requires a Backend in this process: libllama loads nothing without one
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& path, const GgufInfo& info);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Errors  kInvalidArgument: the text is not valid UTF-8, or holds what the vocabulary has no token for (both with
  ///         the byte offset), or is too long to count
  Result<std::vector<int32_t>> Encode(std::string_view text, bool parse_special) const;

  /// The bytes of one token; control tokens give nothing. A token may hold part of a UTF-8 character.
  std::string Piece(int32_t token) const;
  bool IsEndOfGeneration(int32_t token) const;

  const std::string& path() const { return path_; }
  /// Of every token's text, in order: two files with one fingerprint number their tokens alike.
  uint64_t fingerprint() const { return fingerprint_; }

  bool has_chat_template() const { return !template_.empty(); }
  /// The prompt of a conversation, ready for Encode with parse_special.
  /// Errors  kNotFound: the file has no template; kModelUnsupported: the template fails, with its words. Both name the
  ///         file
  Result<std::string> ApplyChatTemplate(std::span<const ChatMessage> messages) const;

  const llama_vocab* vocab() const { return vocab_; }

 private:
  Tokenizer() = default;

  std::string path_;
  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  uint64_t fingerprint_ = 0;
  std::string template_;
  std::string bos_text_;
  std::string eos_text_;
};

/// The byte offset of the first byte that is not valid UTF-8, or std::string_view::npos.
size_t FindInvalidUtf8(std::string_view text);

/// Joins token pieces and hands out only whole UTF-8 characters.
class Utf8Stream {
 public:
  /// The bytes that can be shown now.
  std::string Push(std::string_view piece);
  /// What is left at the end: an incomplete character is replaced by U+FFFD.
  std::string Finish();

 private:
  std::string pending_;
};

}  // namespace kvant::engine
