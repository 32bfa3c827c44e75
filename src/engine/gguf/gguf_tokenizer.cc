#include "engine/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/gguf/concat.h"
#include "engine/gguf/gguf_metadata.h"
#include "engine/gguf/gguf_vocabulary.h"

namespace kvant::engine {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr uint32_t kMaxTokenType = 6;
constexpr uint32_t kByteTokenType = 6;
constexpr uint64_t kMaxTemplateLength = uint64_t{1} << 20;

std::string Key(std::string_view suffix) { return std::string(kPrefix).append(suffix); }

constexpr PreTokenizer kPreTokenizers[] = {
    {"default", false},         {"llama-bpe", true},     {"llama3", true},
    {"llama-v3", true},         {"falcon3", true},       {"pixtral", true},
    {"tekken", true},           {"smollm", false},       {"gpt-2", false},
    {"gpt-4o", false},          {"qwen2", false},        {"deepseek-r1-qwen", false},
    {"megrez", false},          {"deepseek-llm", false}, {"deepseek-v3", false},
    {"deepseek-coder", false},  {"falcon", false},       {"mpt", false},
    {"starcoder", false},       {"refact", false},       {"command-r", false},
    {"stablelm2", false},       {"olmo", false},         {"dbrx", false},
    {"smaug-bpe", false},       {"poro-chat", false},    {"viking", false},
    {"codeshell", false},       {"gpt3-finnish", false}, {"minerva-7b", false},
    {"superbpe", false},        {"trillion", false},     {"seed-coder", false},
    {"granite-docling", false},
};

// Ids libllama reads; one outside the vocabulary it would replace by a default of its own.
constexpr std::string_view kSpecialIds[] = {
    "bos_token_id",     "eos_token_id",     "eot_token_id",     "eom_token_id",       "unknown_token_id",
    "cls_token_id",     "mask_token_id",    "padding_token_id", "seperator_token_id", "fim_pre_token_id",
    "fim_suf_token_id", "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id",   "fim_sep_token_id",
    "prefix_token_id",  "suffix_token_id",  "middle_token_id",
};

template <typename T>
T Element(const GgufValue& array, uint64_t index) {
  T value;
  std::memcpy(&value, array.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

Status CheckLength(const GgufValue& array, const Vocabulary& vocabulary) {
  return array.count == vocabulary.size()
             ? OkStatus()
             : CorruptValue(array, Concat(array.count, " entries for ", vocabulary.size(), " tokens"));
}

Status CheckTokenTypes(const GgufHeader& header, const Vocabulary& vocabulary) {
  const std::string key = Key("token_type");
  KVANT_ASSIGN_OR_RETURN(const GgufValue* types, GetArray(header, key, GgufType::kI32));
  if (types == nullptr) {
    return MissingValue(key);
  }
  KVANT_RETURN_IF_ERROR(CheckLength(*types, vocabulary));
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    const auto type = Element<uint32_t>(*types, id);
    if (type > kMaxTokenType) {
      return CorruptValue(*types, Concat("token ", id, " has unknown type ", static_cast<int32_t>(type)));
    }
    if (type == kByteTokenType && !ByteOfToken(vocabulary.text(id))) {
      return CorruptValue(*types, Concat("token ", id, " is a byte token, its text is not like <0x0A>"));
    }
  }
  return OkStatus();
}

Status CheckScores(const GgufHeader& header, const Vocabulary& vocabulary, bool required) {
  const std::string key = Key("scores");
  if (FindValue(header, key) == nullptr) {
    return required ? MissingValue(key) : OkStatus();
  }
  KVANT_ASSIGN_OR_RETURN(const GgufValue* scores, GetArray(header, key, GgufType::kF32));
  KVANT_RETURN_IF_ERROR(CheckLength(*scores, vocabulary));
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    if (!std::isfinite(Element<float>(*scores, id))) {
      return CorruptValue(*scores, Concat("the score of token ", id, " is not finite"));
    }
  }
  return OkStatus();
}

// "left right": exactly one space, nothing empty.
Status CheckMerges(const GgufHeader& header) {
  const std::string key = Key("merges");
  KVANT_ASSIGN_OR_RETURN(const GgufValue* merges, GetArray(header, key, GgufType::kString));
  if (merges == nullptr) {
    return MissingValue(key);
  }
  return ForEachText(header, *merges, [&](uint64_t i, std::string_view text, uint64_t offset) {
    const size_t space = text.find(' ');
    const bool pair = space != std::string_view::npos && space > 0 && space + 1 < text.size() &&
                      text.find(' ', space + 1) == std::string_view::npos;
    if (!pair || text.find('\0') != std::string_view::npos || !IsUtf8(text)) {
      return CorruptAt(key, Concat("merge ", i, " is not two texts with a space between them"), offset);
    }
    return OkStatus();
  });
}

// SentencePiece falls back to bytes: libllama throws out of its C interface when one has no token.
Status CheckByteFallback(const GgufHeader& header, const Vocabulary& vocabulary) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const std::string token = Concat("<0x", kHex[byte >> 4], kHex[byte & 15], ">");
    if (!vocabulary.Find(token) && !vocabulary.Find(std::string(1, static_cast<char>(byte)))) {
      return CorruptValue(*FindValue(header, Key("tokens")), Concat("no token for the byte ", token));
    }
  }
  return OkStatus();
}

Result<int32_t> ReadId(const GgufHeader& header, std::string_view suffix, const Vocabulary& vocabulary) {
  const std::string key = Key(suffix);
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint32_t> id, GetU32(header, key));
  if (id && *id >= vocabulary.size()) {
    return CorruptValue(*FindValue(header, key), Concat(*id, " is no token of a vocabulary of ", vocabulary.size()));
  }
  return id ? static_cast<int32_t>(*id) : -1;
}

Status CheckSuppressed(const GgufHeader& header, const Vocabulary& vocabulary) {
  KVANT_ASSIGN_OR_RETURN(const GgufValue* ids, GetArray(header, Key("suppress_tokens"), GgufType::kI32));
  for (uint64_t i = 0; ids != nullptr && i < ids->count; ++i) {
    if (Element<uint32_t>(*ids, i) >= vocabulary.size()) {
      return CorruptValue(*ids, Concat("entry ", i, " is no token"));
    }
  }
  return OkStatus();
}

// Sets add_bos and add_eos as libllama will, and makes sure that the ids they need are named.
Status ReadAutomaticTokens(const GgufHeader& header, TokenizerParams& params, bool default_bos) {
  KVANT_ASSIGN_OR_RETURN(const std::optional<bool> add_bos, GetBool(header, Key("add_bos_token")));
  KVANT_ASSIGN_OR_RETURN(const std::optional<bool> add_eos, GetBool(header, Key("add_eos_token")));
  params.add_bos = add_bos.value_or(default_bos);
  params.add_eos = add_eos.value_or(false);
  if (params.add_bos && params.bos < 0) {
    return MissingValue(Key("bos_token_id"));
  }
  return params.eos < 0 ? MissingValue(Key("eos_token_id")) : OkStatus();
}

Status ReadSpecialIds(const GgufHeader& header, const Vocabulary& vocabulary, TokenizerParams& params) {
  for (const std::string_view suffix : kSpecialIds) {
    KVANT_RETURN_IF_ERROR(ReadId(header, suffix, vocabulary).status());
  }
  KVANT_ASSIGN_OR_RETURN(params.bos, ReadId(header, "bos_token_id", vocabulary));
  KVANT_ASSIGN_OR_RETURN(params.eos, ReadId(header, "eos_token_id", vocabulary));
  KVANT_ASSIGN_OR_RETURN(params.eot, ReadId(header, "eot_token_id", vocabulary));
  return CheckSuppressed(header, vocabulary);
}

// The named pre-tokenizer of a BPE model; an error names it when the table does not have it.
Result<PreTokenizer> ReadPreTokenizer(const GgufHeader& header) {
  const std::string key = Key("pre");
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string_view> name, GetText(header, key));
  if (!name) {
    return MissingValue(key);
  }
  for (const PreTokenizer& known : kPreTokenizers) {
    if (known.name == *name) {
      return known;
    }
  }
  return UnsupportedValue(*FindValue(header, key), Concat("pre-tokenizer '", *name, "' is not supported"));
}

Status ReadModel(const GgufHeader& header, const Vocabulary& vocabulary, TokenizerParams& params) {
  const std::string key = Key("model");
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string_view> model, GetText(header, key));
  if (!model) {
    return MissingValue(key);
  }
  params.model = *model;
  KVANT_RETURN_IF_ERROR(ReadSpecialIds(header, vocabulary, params));
  if (*model == "gpt2") {
    KVANT_ASSIGN_OR_RETURN(const PreTokenizer pre, ReadPreTokenizer(header));
    params.pre = pre.name;
    KVANT_RETURN_IF_ERROR(CheckScores(header, vocabulary, false));
    KVANT_RETURN_IF_ERROR(CheckMerges(header));
    return ReadAutomaticTokens(header, params, pre.add_bos);
  }
  if (*model == "llama") {
    KVANT_RETURN_IF_ERROR(GetText(header, Key("pre")).status());
    KVANT_RETURN_IF_ERROR(CheckScores(header, vocabulary, true));
    KVANT_RETURN_IF_ERROR(CheckByteFallback(header, vocabulary));
    return ReadAutomaticTokens(header, params, true);
  }
  return UnsupportedValue(*FindValue(header, key),
                          Concat("tokenizer '", *model, "' is not supported; gpt2 and llama are"));
}

Status ReadTemplate(const GgufHeader& header, TokenizerParams& params) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string_view> text, GetText(header, kKey));
  if (text && text->size() > kMaxTemplateLength) {
    return CorruptValue(*FindValue(header, kKey), Concat(text->size(), " bytes, more than ", kMaxTemplateLength));
  }
  params.chat_template = text.value_or("");
  return OkStatus();
}

}  // namespace

std::span<const PreTokenizer> PreTokenizers() { return kPreTokenizers; }

Result<CheckedTokenizer> ReadTokenizer(const GgufHeader& header) {
  KVANT_ASSIGN_OR_RETURN(const Vocabulary vocabulary, Vocabulary::Read(header));
  CheckedTokenizer tokenizer;
  tokenizer.vocab_size = vocabulary.size();
  KVANT_RETURN_IF_ERROR(CheckTokenTypes(header, vocabulary));
  KVANT_RETURN_IF_ERROR(ReadModel(header, vocabulary, tokenizer.params));
  KVANT_RETURN_IF_ERROR(ReadTemplate(header, tokenizer.params));
  return tokenizer;
}

}  // namespace kvant::engine
