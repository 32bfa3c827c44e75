#include <algorithm>

#include "kvant/engine/tokenizer.h"

namespace kvant::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Character {
  size_t bytes;     ///< looked at
  bool valid;       ///< a whole character
  bool incomplete;  ///< the text ends inside what may still become one
};

// The character at the front of a text that is not empty, by the table of RFC 3629 (no surrogates, no overlong forms).
Character FrontCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return {1, true, false};
  }
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : lead >= 0xE0 && lead <= 0xEF ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0) {
    return {1, false, false};
  }
  const unsigned char second_low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char second_high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      return {i, false, true};
    }
    const unsigned char low = i == 1 ? second_low : 0x80;
    const unsigned char high = i == 1 ? second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) {
      return {i, false, false};
    }
  }
  return {length, true, false};
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character character = FrontCharacter(text.substr(at));
    if (!character.valid) {
      return at;
    }
    at += character.bytes;
  }
  return std::string_view::npos;
}

std::string Utf8Stream::Push(std::string_view piece) {
  pending_ += piece;
  std::string whole;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Character character = FrontCharacter(rest);
    if (character.incomplete) {
      break;
    }
    whole += character.valid ? rest.substr(0, character.bytes) : kReplacement;
    rest.remove_prefix(character.bytes);
  }
  pending_ = std::string(rest);
  return whole;
}

std::string Utf8Stream::Finish() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return incomplete ? std::string(kReplacement) : std::string();
}

}  // namespace kvant::engine
