#include "engine/gguf/gguf_metadata.h"

#include <cmath>
#include <cstring>

#include "engine/gguf/concat.h"

namespace kvant::engine {
namespace {

struct TypedKey {
  std::string_view key;
  GgufType type;
};
constexpr TypedKey kTypedKeys[] = {
    {"general.architecture", GgufType::kString},
    {"general.name", GgufType::kString},
    {"general.file_type", GgufType::kU32},
    {"split.count", GgufType::kU16},
    {"tokenizer.ggml.token_type_count", GgufType::kU32},
    {"tokenizer.ggml.add_sep_token", GgufType::kBool},
    {"tokenizer.ggml.add_space_prefix", GgufType::kBool},
    {"tokenizer.ggml.remove_extra_whitespaces", GgufType::kBool},
    {"tokenizer.ggml.normalizer.lowercase", GgufType::kBool},
    {"tokenizer.ggml.normalizer.strip_accents", GgufType::kBool},
};

// Keys by which libllama would compute something else than the plain model.
constexpr std::string_view kForbiddenKeys[] = {"general.tensor_extra.name", "general.tensor_extra.prec_a4"};

template <typename T>
Result<std::optional<T>> GetScalar(const GgufHeader& header, std::string_view key, GgufType type) {
  const GgufValue* value = FindValue(header, key);
  if (value == nullptr) {
    return std::optional<T>();
  }
  if (value->type != type) {
    return CorruptValue(*value, Concat("type ", GgufTypeName(value->type), ", ", GgufTypeName(type), " is needed"));
  }
  T scalar;
  std::memcpy(&scalar, value->bytes.data(), sizeof(T));
  return std::optional<T>(scalar);
}

}  // namespace

const GgufValue* FindValue(const GgufHeader& header, std::string_view key) {
  const auto found = header.value_index.find(key);
  return found == header.value_index.end() ? nullptr : &header.values[found->second];
}

Status CorruptValue(const GgufValue& value, std::string_view what) { return CorruptAt(value.key, what, value.offset); }

Status UnsupportedValue(const GgufValue& value, std::string_view what) {
  return {StatusCode::kModelUnsupported, CorruptValue(value, what).message()};
}

Status MissingValue(std::string_view key) { return {StatusCode::kCorruption, Concat(key, ": the key is missing")}; }

Result<std::optional<uint32_t>> GetU32(const GgufHeader& header, std::string_view key) {
  return GetScalar<uint32_t>(header, key, GgufType::kU32);
}

Result<std::optional<float>> GetF32(const GgufHeader& header, std::string_view key) {
  return GetScalar<float>(header, key, GgufType::kF32);
}

Result<std::optional<bool>> GetBool(const GgufHeader& header, std::string_view key) {
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint8_t> bit, GetScalar<uint8_t>(header, key, GgufType::kBool));
  return bit ? std::optional(*bit != 0) : std::nullopt;
}

Result<std::optional<std::string_view>> GetText(const GgufHeader& header, std::string_view key) {
  const GgufValue* value = FindValue(header, key);
  if (value == nullptr) {
    return std::optional<std::string_view>();
  }
  if (value->type != GgufType::kString) {
    return CorruptValue(*value, Concat("type ", GgufTypeName(value->type), ", str is needed"));
  }
  const auto bytes = value->bytes.subspan(sizeof(uint64_t));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.find('\0') != std::string_view::npos) {
    return CorruptValue(*value, "the text holds a NUL");
  }
  if (!IsUtf8(text)) {
    return CorruptValue(*value, "the text is not valid UTF-8");
  }
  return std::optional(text);
}

Result<uint32_t> GetCount(const GgufHeader& header, std::string_view key, const CountRule& rule) {
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint32_t> count, GetU32(header, key));
  if (!count) {
    return rule.missing ? Result<uint32_t>(*rule.missing) : MissingValue(key);
  }
  if (*count < rule.min || *count > rule.max) {
    return CorruptValue(*FindValue(header, key), Concat(*count, " is outside ", rule.min, " to ", rule.max));
  }
  return *count;
}

Result<float> GetPositive(const GgufHeader& header, std::string_view key, float max, std::optional<float> missing) {
  KVANT_ASSIGN_OR_RETURN(const std::optional<float> number, GetF32(header, key));
  if (!number) {
    return missing ? Result<float>(*missing) : MissingValue(key);
  }
  if (!std::isfinite(*number) || *number <= 0.0F || *number > max) {
    return CorruptValue(*FindValue(header, key), Concat(*number, " is not above 0 and at most ", max));
  }
  return *number;
}

Result<const GgufValue*> GetArray(const GgufHeader& header, std::string_view key, GgufType element) {
  const GgufValue* value = FindValue(header, key);
  if (value != nullptr && (value->type != GgufType::kArray || value->element != element)) {
    return CorruptValue(*value, Concat("no array of ", GgufTypeName(element)));
  }
  return value;
}

Status CheckCommonKeys(const GgufHeader& header) {
  for (const TypedKey& typed : kTypedKeys) {
    const GgufValue* value = FindValue(header, typed.key);
    if (value != nullptr && value->type != typed.type) {
      return CorruptValue(*value,
                          Concat("type ", GgufTypeName(value->type), ", ", GgufTypeName(typed.type), " is needed"));
    }
  }
  for (const std::string_view key : kForbiddenKeys) {
    if (const GgufValue* value = FindValue(header, key); value != nullptr) {
      return UnsupportedValue(*value, "per-tensor compute hints are not supported");
    }
  }
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint16_t> parts,
                         GetScalar<uint16_t>(header, "split.count", GgufType::kU16));
  if (parts.value_or(0) > 1) {
    return UnsupportedValue(*FindValue(header, "split.count"),
                            Concat("one part of ", *parts, "; merge the parts into one file first"));
  }
  return OkStatus();
}

}  // namespace kvant::engine
