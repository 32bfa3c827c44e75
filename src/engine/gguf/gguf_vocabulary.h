#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf/gguf_header.h"
#include "kvant/base/status.h"

namespace kvant::engine {

/// The token texts of a file, all different (libllama asserts that they are).
class Vocabulary {
 public:
  /// Reads tokenizer.ggml.tokens: valid UTF-8, no NUL, no text twice.
  static Result<Vocabulary> Read(const GgufHeader& header);

  uint32_t size() const { return static_cast<uint32_t>(texts_.size()); }
  std::string_view text(uint32_t id) const { return texts_[id]; }
  std::optional<uint32_t> Find(std::string_view text) const;

 private:
  Vocabulary() = default;
  bool Insert(std::string_view text);
  size_t Slot(std::string_view text) const;

  std::vector<std::string_view> texts_;
  std::vector<uint32_t> slots_;      // open addressing, id + 1, 0 is empty; a power of two at least twice the texts
  std::deque<std::string> renamed_;  // what libllama calls empty tokens
};

/// "<0x0A>" is 10; nothing for other texts.
std::optional<uint8_t> ByteOfToken(std::string_view text);

}  // namespace kvant::engine
