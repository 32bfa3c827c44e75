#include "engine/gguf/gguf_vocabulary.h"

#include <bit>
#include <functional>

#include "engine/gguf/concat.h"
#include "engine/gguf/gguf_metadata.h"

namespace kvant::engine {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr uint64_t kMaxTokens = 1 << 20;
constexpr uint64_t kMaxTokenLength = 65535;

std::optional<uint8_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') {
    return static_cast<uint8_t>(c - '0');
  }
  return c >= 'A' && c <= 'F' ? std::optional(static_cast<uint8_t>(c - 'A' + 10)) : std::nullopt;
}

Status CheckText(std::string_view text, uint64_t offset) {
  if (text.size() > kMaxTokenLength) {
    return CorruptAt(kTokensKey, Concat("a token of ", text.size(), " bytes"), offset);
  }
  if (text.find('\0') != std::string_view::npos) {
    return CorruptAt(kTokensKey, "a token holds a NUL", offset);
  }
  return IsUtf8(text) ? OkStatus() : CorruptAt(kTokensKey, "a token is not valid UTF-8", offset);
}

}  // namespace

std::optional<uint8_t> ByteOfToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') {
    return std::nullopt;
  }
  const auto high = HexDigit(text[3]);
  const auto low = HexDigit(text[4]);
  return high && low ? std::optional(static_cast<uint8_t>(*high << 4 | *low)) : std::nullopt;
}

Result<Vocabulary> Vocabulary::Read(const GgufHeader& header) {
  KVANT_ASSIGN_OR_RETURN(const GgufValue* array, GetArray(header, kTokensKey, GgufType::kString));
  if (array == nullptr) {
    return MissingValue(kTokensKey);
  }
  if (array->count == 0 || array->count > kMaxTokens) {
    return CorruptValue(*array, Concat(array->count, " tokens, 1 to ", kMaxTokens, " are allowed"));
  }
  Vocabulary vocabulary;
  vocabulary.texts_.reserve(array->count);
  vocabulary.slots_.resize(std::bit_ceil(2 * array->count), 0);
  const Status added = ForEachText(header, *array, [&](uint64_t id, std::string_view text, uint64_t offset) {
    KVANT_RETURN_IF_ERROR(CheckText(text, offset));
    if (text.empty()) {
      text = vocabulary.renamed_.emplace_back(Concat("[EMPTY_", id, "]"));
    }
    return vocabulary.Insert(text)
               ? OkStatus()
               : CorruptAt(kTokensKey, Concat("token ", id, " ('", text, "') stands in the list twice"), offset);
  });
  KVANT_RETURN_IF_ERROR(added);
  return vocabulary;
}

// Where the text is, or the free slot where it would go.
size_t Vocabulary::Slot(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>()(text) & mask;
  while (slots_[slot] != 0 && texts_[slots_[slot] - 1] != text) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

bool Vocabulary::Insert(std::string_view text) {
  uint32_t& slot = slots_[Slot(text)];
  if (slot != 0) {
    return false;
  }
  texts_.push_back(text);
  slot = size();
  return true;
}

std::optional<uint32_t> Vocabulary::Find(std::string_view text) const {
  const uint32_t slot = slots_[Slot(text)];
  return slot == 0 ? std::nullopt : std::optional(slot - 1);
}

}  // namespace kvant::engine
