#include "engine/gguf/gguf_model.h"

#include <algorithm>
#include <cmath>

#include "engine/gguf/concat.h"
#include "engine/gguf/gguf_metadata.h"

namespace kvant::engine {
namespace {

constexpr uint32_t kMaxLayers = 512;  // libllama asserts beyond
constexpr uint32_t kMaxWidth = 1 << 20;
constexpr uint32_t kMaxHeads = 1 << 12;
constexpr uint32_t kMaxHeadDim = 1024;
constexpr uint32_t kMaxContext = 1 << 27;
constexpr float kMaxRopeBase = 1e12F;
constexpr float kMaxRopeFactor = 1e6F;
constexpr float kMaxEpsilon = 1.0F;
constexpr float kMaxCap = 1e6F;

std::string Key(const ArchitectureRule& rule, std::string_view suffix) {
  return std::string(rule.name).append(".").append(suffix);
}

// A scalar of the neutral key's type as a float.
Result<std::optional<float>> NeutralValue(const GgufHeader& header, std::string_view key, GgufType type) {
  if (type == GgufType::kF32) {
    return GetF32(header, key);
  }
  if (type == GgufType::kBool) {
    KVANT_ASSIGN_OR_RETURN(const std::optional<bool> bit, GetBool(header, key));
    return bit ? std::optional(*bit ? 1.0F : 0.0F) : std::nullopt;
  }
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint32_t> count, GetU32(header, key));
  return count ? std::optional(static_cast<float>(*count)) : std::nullopt;
}

Status CheckNeutralKey(const GgufHeader& header, const ArchitectureRule& rule, const NeutralKey& neutral) {
  const std::string key = Key(rule, neutral.suffix);
  KVANT_ASSIGN_OR_RETURN(const std::optional<float> value, NeutralValue(header, key, neutral.type));
  if (value && *value != neutral.value) {
    return UnsupportedValue(*FindValue(header, key),
                            Concat(*value, " is not supported, only ", neutral.value, " or no such key"));
  }
  return OkStatus();
}

Status CheckNeutralKeys(const GgufHeader& header, const ArchitectureRule& rule) {
  for (const std::span<const NeutralKey> part : rule.neutral) {
    for (const NeutralKey& neutral : part) {
      KVANT_RETURN_IF_ERROR(CheckNeutralKey(header, rule, neutral));
    }
  }
  for (const std::string_view suffix : rule.forbidden) {
    if (const GgufValue* value = FindValue(header, Key(rule, suffix)); value != nullptr) {
      return UnsupportedValue(*value, "not supported for this architecture");
    }
  }
  return rule.ignores_window ? GetU32(header, Key(rule, "attention.sliding_window")).status() : OkStatus();
}

Status OtherHeadSize(std::string_view key, uint32_t dim, uint32_t head_dim) {
  return {StatusCode::kModelUnsupported,
          Concat(key, ": ", dim, ", but the head size is ", head_dim, "; only equal ones are supported")};
}

// key_length, value_length and rope.dimension_count; the embedding's share of a head where they are absent.
Status ReadHeadDim(const GgufHeader& header, const ArchitectureRule& rule, ModelParams& params) {
  const std::string key_length = Key(rule, "attention.key_length");
  const uint32_t share = params.embedding / params.num_q_heads;
  if (FindValue(header, key_length) == nullptr && share * params.num_q_heads != params.embedding) {
    return CorruptValue(*FindValue(header, Key(rule, "attention.head_count")),
                        Concat(params.num_q_heads, " heads do not divide the embedding length ", params.embedding));
  }
  KVANT_ASSIGN_OR_RETURN(params.head_dim, GetCount(header, key_length, {1, kMaxHeadDim, share}));
  if (params.head_dim > kMaxHeadDim || params.head_dim % 2 != 0) {
    return {StatusCode::kModelUnsupported,
            Concat("head size ", params.head_dim, ": only even sizes up to ", kMaxHeadDim)};
  }
  if (!rule.own_head_dim && params.head_dim != share) {
    return UnsupportedValue(*FindValue(header, key_length),
                            Concat(params.head_dim, ", but the embedding's share of a head is ", share));
  }
  // Where value_length is absent libllama takes the embedding's share, not key_length.
  const std::string value_length = Key(rule, "attention.value_length");
  KVANT_ASSIGN_OR_RETURN(const uint32_t value_dim, GetCount(header, value_length, {1, kMaxHeadDim, share}));
  if (value_dim != params.head_dim) {
    return OtherHeadSize(value_length, value_dim, params.head_dim);
  }
  const std::string rope_dims = Key(rule, "rope.dimension_count");
  KVANT_ASSIGN_OR_RETURN(params.rope.dims, GetCount(header, rope_dims, {1, kMaxHeadDim, params.head_dim}));
  const bool part = rule.partial_rope && params.rope.dims < params.head_dim && params.rope.dims % 2 == 0;
  return part || params.rope.dims == params.head_dim ? OkStatus()
                                                     : OtherHeadSize(rope_dims, params.rope.dims, params.head_dim);
}

Status ReadShape(const GgufHeader& header, const ArchitectureRule& rule, ModelParams& params) {
  const auto count = [&](std::string_view suffix, const CountRule& bounds) {
    return GetCount(header, Key(rule, suffix), bounds);
  };
  KVANT_ASSIGN_OR_RETURN(params.num_layers, count("block_count", {1, kMaxLayers, {}}));
  KVANT_ASSIGN_OR_RETURN(params.context_length, count("context_length", {1, kMaxContext, {}}));
  KVANT_ASSIGN_OR_RETURN(params.embedding, count("embedding_length", {1, kMaxWidth, {}}));
  KVANT_ASSIGN_OR_RETURN(params.feed_forward, count("feed_forward_length", {1, kMaxWidth, {}}));
  KVANT_ASSIGN_OR_RETURN(params.num_q_heads, count("attention.head_count", {1, kMaxHeads, {}}));
  KVANT_ASSIGN_OR_RETURN(params.num_kv_heads, count("attention.head_count_kv", {1, kMaxHeads, params.num_q_heads}));
  if (params.num_q_heads % params.num_kv_heads != 0) {
    return CorruptValue(*FindValue(header, Key(rule, "attention.head_count_kv")),
                        Concat(params.num_kv_heads, " KV heads do not divide ", params.num_q_heads, " query heads"));
  }
  return ReadHeadDim(header, rule, params);
}

Result<RopeScaling> ReadScaling(const GgufHeader& header, const ArchitectureRule& rule) {
  const std::string key = Key(rule, "rope.scaling.type");
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string_view> name, GetText(header, key));
  if (!name || *name == "linear") {
    return RopeScaling::kLinear;  // libllama's default, with a factor of 1 no scaling
  }
  if (*name == "none") {
    return RopeScaling::kNone;
  }
  if (*name == "yarn") {
    return RopeScaling::kYarn;
  }
  if (*name == "longrope" && rule.long_rope) {
    return RopeScaling::kLinear;  // the factors are tensors; the key changes nothing else
  }
  return UnsupportedValue(*FindValue(header, key), Concat("'", *name, "' is not supported; none, linear and yarn are"));
}

// One list without the other would leave half of the contexts without any.
Status ReadLongFactors(const GgufHeader& header, RopeParams& rope) {
  const bool has_long = header.tensor_index.contains("rope_factors_long.weight");
  const bool has_short = header.tensor_index.contains("rope_factors_short.weight");
  if (has_long != has_short) {
    return {StatusCode::kCorruption,
            Concat("tensor 'rope_factors_", has_long ? "short" : "long", ".weight' is missing")};
  }
  rope.has_long_factors = has_long;
  return OkStatus();
}

Status ReadRope(const GgufHeader& header, const ArchitectureRule& rule, ModelParams& params) {
  RopeParams& rope = params.rope;
  const auto positive = [&](std::string_view suffix, float max, float missing) {
    return GetPositive(header, Key(rule, suffix), max, missing);
  };
  rope.layout = rule.layout;
  KVANT_ASSIGN_OR_RETURN(rope.base, positive("rope.freq_base", kMaxRopeBase, 10000.0F));
  KVANT_ASSIGN_OR_RETURN(rope.scaling, ReadScaling(header, rule));
  KVANT_ASSIGN_OR_RETURN(const float old_factor, positive("rope.scale_linear", kMaxRopeFactor, 1.0F));
  KVANT_ASSIGN_OR_RETURN(rope.factor, positive("rope.scaling.factor", kMaxRopeFactor, old_factor));
  KVANT_ASSIGN_OR_RETURN(rope.attn_factor, positive("rope.scaling.attn_factor", kMaxRopeFactor, 1.0F));
  KVANT_ASSIGN_OR_RETURN(rope.original_context, GetCount(header, Key(rule, "rope.scaling.original_context_length"),
                                                         {1, kMaxContext, params.context_length}));
  KVANT_RETURN_IF_ERROR(GetBool(header, Key(rule, "rope.scaling.finetuned")).status());
  if (rope.scaling == RopeScaling::kLinear && rope.factor == 1.0F) {
    rope.scaling = RopeScaling::kNone;
  }
  const bool own_rope = !rule.windows || rule.windows->own_rope;
  rope.window_factor = own_rope ? 1.0F : rope.factor;  // in libllama `none` undoes it in the other layers alone
  if (rope.scaling == RopeScaling::kNone) {
    rope.factor = 1.0F;
  }
  rope.window_base = own_rope ? 10000.0F : rope.base;
  if (rule.windows) {
    KVANT_ASSIGN_OR_RETURN(rope.window_base, positive("rope.freq_base_swa", kMaxRopeBase, rope.window_base));
  }
  rope.has_freq_factors = header.tensor_index.contains("rope_freqs.weight");
  return ReadLongFactors(header, rope);
}

// A layer's window by the pattern: an array of booleans, or the length of a period whose last layer has none.
Status ReadWindowPattern(const GgufHeader& header, const std::string& key, const WindowDefaults& defaults,
                         uint32_t window, std::vector<uint32_t>& windows) {
  const GgufValue* value = FindValue(header, key);
  if (value == nullptr || value->type != GgufType::kArray) {
    KVANT_ASSIGN_OR_RETURN(const uint32_t pattern, GetCount(header, key, {0, kMaxLayers, defaults.pattern}));
    for (uint32_t layer = 0; layer < windows.size(); ++layer) {
      windows[layer] = pattern == 0 || layer % pattern < pattern - 1 ? window : 0;
    }
    return OkStatus();
  }
  KVANT_ASSIGN_OR_RETURN(const GgufValue* flags, GetArray(header, key, GgufType::kBool));
  if (flags->count != windows.size()) {
    return CorruptValue(*flags, Concat(flags->count, " entries for ", windows.size(), " layers"));
  }
  for (uint32_t layer = 0; layer < windows.size(); ++layer) {
    windows[layer] = flags->bytes[layer] != std::byte{0} ? window : 0;
  }
  return OkStatus();
}

Status ReadWindows(const GgufHeader& header, const ArchitectureRule& rule, ModelParams& params) {
  params.windows.assign(params.num_layers, 0);
  if (!rule.windows) {
    return OkStatus();
  }
  const uint32_t least = rule.windows->tokens > 0 ? 1 : 0;
  KVANT_ASSIGN_OR_RETURN(const uint32_t window, GetCount(header, Key(rule, "attention.sliding_window"),
                                                         {least, kMaxContext, rule.windows->tokens}));
  if (window == 0) {
    return OkStatus();
  }
  const std::string pattern = Key(rule, "attention.sliding_window_pattern");
  KVANT_RETURN_IF_ERROR(ReadWindowPattern(header, pattern, *rule.windows, window, params.windows));
  if (std::count(params.windows.begin(), params.windows.end(), window) == 0) {  // libllama asserts
    return CorruptValue(*FindValue(header, pattern), Concat("no layer has the window of ", window));
  }
  return OkStatus();
}

// A cap; `missing` of nothing: the architecture has none.
Result<float> ReadCap(const GgufHeader& header, const std::string& key, std::optional<float> missing) {
  KVANT_ASSIGN_OR_RETURN(const std::optional<float> stated,
                         missing ? GetF32(header, key) : Result<std::optional<float>>(std::optional<float>()));
  if (!stated || (*stated == 0.0F && *missing == 0.0F)) {
    return missing.value_or(0.0F);
  }
  return GetPositive(header, key, kMaxCap, missing);
}

Status ReadScales(const GgufHeader& header, const ArchitectureRule& rule, ModelParams& params) {
  const auto embedding = static_cast<float>(params.embedding);
  params.activation = rule.activation;
  params.embedding_scale = rule.scaled_embedding ? std::sqrt(embedding) : 1.0F;
  const bool wide = params.num_layers == rule.wide_query_layers;
  const uint32_t width = wide ? params.embedding / params.num_q_heads : params.head_dim;
  params.query_scale = 1.0F / std::sqrt(static_cast<float>(width));
  KVANT_ASSIGN_OR_RETURN(params.attention_cap,
                         ReadCap(header, Key(rule, "attn_logit_softcapping"), rule.attention_cap));
  KVANT_ASSIGN_OR_RETURN(params.output_cap, ReadCap(header, Key(rule, "final_logit_softcapping"), rule.output_cap));
  return OkStatus();
}

// libllama takes the number as one of an enumeration that ends at 1024, its own mark for "guessed".
Status CheckFileType(const GgufHeader& header) {
  constexpr std::string_view kKey = "general.file_type";
  constexpr uint32_t kLargest = 1024;
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint32_t> type, GetU32(header, kKey));
  return type && *type > kLargest ? UnsupportedValue(*FindValue(header, kKey), Concat(*type, " is no type of file"))
                                  : OkStatus();
}

}  // namespace

Result<const ArchitectureRule*> ReadArchitecture(const GgufHeader& header) {
  KVANT_RETURN_IF_ERROR(CheckFileType(header));
  constexpr std::string_view kKey = "general.architecture";
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string_view> name, GetText(header, kKey));
  if (!name) {
    return MissingValue(kKey);
  }
  const ArchitectureRule* rule = FindArchitecture(*name);
  if (rule == nullptr) {
    return UnsupportedValue(*FindValue(header, kKey),
                            Concat("'", *name, "' is not supported; ", ArchitectureNames(), " are"));
  }
  return rule;
}

Result<ModelParams> ReadModelParams(const GgufHeader& header, const ArchitectureRule& rule, uint32_t vocab_size) {
  ModelParams params;
  params.vocab_size = vocab_size;
  const std::string vocab_key = Key(rule, "vocab_size");
  KVANT_ASSIGN_OR_RETURN(const std::optional<uint32_t> stated, GetU32(header, vocab_key));
  if (stated && *stated != vocab_size) {
    return CorruptValue(*FindValue(header, vocab_key),
                        Concat(*stated, ", but the tokenizer has ", vocab_size, " tokens"));
  }
  KVANT_RETURN_IF_ERROR(CheckNeutralKeys(header, rule));
  KVANT_RETURN_IF_ERROR(ReadShape(header, rule, params));
  KVANT_ASSIGN_OR_RETURN(params.rms_epsilon,
                         GetPositive(header, Key(rule, "attention.layer_norm_rms_epsilon"), kMaxEpsilon, {}));
  KVANT_RETURN_IF_ERROR(ReadRope(header, rule, params));
  KVANT_RETURN_IF_ERROR(ReadScales(header, rule, params));
  KVANT_RETURN_IF_ERROR(ReadWindows(header, rule, params));
  params.tied_embeddings = !header.tensor_index.contains("output.weight");
  return params;
}

}  // namespace kvant::engine
