#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "engine/gguf/gguf_header.h"
#include "kvant/base/status.h"
#include "kvant/engine/tokenizer.h"

namespace kvant::engine {

/// The entry, or null.
const GgufValue* FindValue(const GgufHeader& header, std::string_view key);

/// An error about a metadata entry, with its byte offset. CorruptValue: the file contradicts itself;
/// UnsupportedValue: sound, but nothing this build runs.
Status CorruptValue(const GgufValue& value, std::string_view what);
Status UnsupportedValue(const GgufValue& value, std::string_view what);
Status MissingValue(std::string_view key);

/// Scalars by key: nothing where the key is absent; an error where its type is another one (libllama throws on
/// that too: it converts no types).
Result<std::optional<uint32_t>> GetU32(const GgufHeader& header, std::string_view key);
Result<std::optional<float>> GetF32(const GgufHeader& header, std::string_view key);
Result<std::optional<bool>> GetBool(const GgufHeader& header, std::string_view key);

/// Valid UTF-8 without NUL (libllama reads strings as C strings).
Result<std::optional<std::string_view>> GetText(const GgufHeader& header, std::string_view key);

/// A u32 in [min, max]. A `missing` of nothing makes the key required.
struct CountRule {
  uint32_t min = 1;
  uint32_t max = 1;
  std::optional<uint32_t> missing;
};
Result<uint32_t> GetCount(const GgufHeader& header, std::string_view key, const CountRule& rule);

/// A finite f32 in (0, max]. A `missing` of nothing makes the key required.
Result<float> GetPositive(const GgufHeader& header, std::string_view key, float max, std::optional<float> missing);

/// The array, null where absent; an error where it is no array of that element type.
Result<const GgufValue*> GetArray(const GgufHeader& header, std::string_view key, GgufType element);

/// Call visit(index, text, byte offset of the text's length) for each string of an array; the first error ends it.
template <typename Visit>
Status ForEachText(const GgufHeader& header, const GgufValue& array, const Visit& visit) {
  std::span<const std::byte> rest = array.bytes;
  for (uint64_t i = 0; i < array.count; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    const auto offset = static_cast<uint64_t>(rest.data() - header.reader.Seen(0).data());
    const std::string_view text(reinterpret_cast<const char*>(rest.data()) + sizeof(length), length);
    KVANT_RETURN_IF_ERROR(visit(i, text, offset));
    rest = rest.subspan(sizeof(length) + length);
  }
  return OkStatus();
}

/// Keys outside the architecture's prefix that libllama reads: where present, of the type it expects, and none that
/// names parts in other files or changes what is computed.
Status CheckCommonKeys(const GgufHeader& header);

inline bool IsUtf8(std::string_view text) { return FindInvalidUtf8(text) == std::string_view::npos; }

}  // namespace kvant::engine
