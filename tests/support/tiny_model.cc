#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>

#include "kvant/base/hash.h"
#include "support/gguf_fixture.h"
#include "support/gguf_writer.h"
#include "support/tiny_tokenizer.h"

namespace kvant::test {
namespace {

constexpr float kLongRopeAttentionFactor = 1.2F;

// What a fixture of an architecture must hold beside what all have.
struct Traits {
  const char* architecture;
  bool fused = false;  // QKV in one matrix, gate and up in another
  bool biases = false;
  bool qk_norms = false;
  bool post_norms = false;
};
constexpr Traits kTraits[] = {
    {.architecture = "llama"},
    {.architecture = "qwen2", .biases = true},
    {.architecture = "qwen3", .qk_norms = true},
    {.architecture = "phi3", .fused = true},
    {.architecture = "gemma2", .post_norms = true},
    {.architecture = "gemma3", .qk_norms = true, .post_norms = true},
};

const Traits* FindTraits(const std::string& architecture) {
  const auto* found = std::find_if(std::begin(kTraits), std::end(kTraits),
                                   [&](const Traits& traits) { return architecture == traits.architecture; });
  return found == std::end(kTraits) ? nullptr : found;
}

uint32_t Embedding(const TinyModelParams& params) {
  return params.embedding > 0 ? params.embedding : params.num_q_heads * params.head_dim;
}
uint32_t RopeDims(const TinyModelParams& params) { return params.rope_dims > 0 ? params.rope_dims : params.head_dim; }
uint32_t OriginalContext(const TinyModelParams& params) {
  return std::max(1U, static_cast<uint32_t>(static_cast<float>(params.context_length) / params.scaling_factor));
}

// Writes keys behind "<architecture>.".
struct Keys {
  gguf_context* out;
  std::string prefix;

  void U32(const char* suffix, uint32_t value) const { gguf_set_val_u32(out, (prefix + suffix).c_str(), value); }
  void F32(const char* suffix, float value) const { gguf_set_val_f32(out, (prefix + suffix).c_str(), value); }
  void Text(const char* suffix, const char* value) const { gguf_set_val_str(out, (prefix + suffix).c_str(), value); }
};

void AddHyperParameters(const Keys& keys, const TinyModelParams& params) {
  gguf_set_val_str(keys.out, "general.architecture", params.architecture.c_str());
  gguf_set_val_str(keys.out, "general.name", "tiny");
  gguf_set_val_u32(keys.out, "general.file_type", 0);
  keys.U32("vocab_size", params.vocab_size);
  keys.U32("context_length", params.context_length);
  keys.U32("embedding_length", Embedding(params));
  keys.U32("block_count", params.num_layers);
  keys.U32("feed_forward_length", params.feed_forward);
  keys.U32("attention.head_count", params.num_q_heads);
  keys.U32("attention.head_count_kv", params.num_kv_heads);
  keys.F32("attention.layer_norm_rms_epsilon", 1e-5F);
  keys.U32("rope.dimension_count", RopeDims(params));
  keys.F32("rope.freq_base", params.rope_base);
  if (params.embedding > 0) {
    keys.U32("attention.key_length", params.head_dim);
    keys.U32("attention.value_length", params.head_dim);
  }
}

void AddWindowsAndCaps(const Keys& keys, const TinyModelParams& params) {
  if (params.window > 0) {
    keys.U32("attention.sliding_window", params.window);
  }
  if (params.window_pattern) {
    keys.U32("attention.sliding_window_pattern", *params.window_pattern);
  }
  if (params.window_layers) {
    const std::vector<uint8_t> flags(params.window_layers->begin(), params.window_layers->end());
    gguf_set_arr_data(keys.out, (keys.prefix + "attention.sliding_window_pattern").c_str(), GGUF_TYPE_BOOL,
                      flags.data(), flags.size());
  }
  if (params.window_base) {
    keys.F32("rope.freq_base_swa", *params.window_base);
  }
  if (params.attention_cap > 0) {
    keys.F32("attn_logit_softcapping", params.attention_cap);
  }
  if (params.output_cap > 0) {
    keys.F32("final_logit_softcapping", params.output_cap);
  }
}

void AddScaling(const Keys& keys, const TinyModelParams& params) {
  switch (params.scaling) {
    case TinyScaling::kNone:
    case TinyScaling::kLlama3: return;
    case TinyScaling::kLinear:
      keys.Text("rope.scaling.type", "linear");
      keys.F32("rope.scaling.factor", params.scaling_factor);
      return;
    case TinyScaling::kYarn:
      keys.Text("rope.scaling.type", "yarn");
      keys.F32("rope.scaling.factor", params.scaling_factor);
      keys.U32("rope.scaling.original_context_length", OriginalContext(params));
      return;
    case TinyScaling::kLongRope:
      keys.F32("rope.scaling.attn_factor", kLongRopeAttentionFactor);
      keys.U32("rope.scaling.original_context_length", OriginalContext(params));
      return;
  }
}

struct Declare {
  GgufWriter& writer;
  std::string prefix;

  void Matrix(const char* name, int64_t columns, int64_t rows) const {
    writer.Declare(prefix + name, std::array{columns, rows});
  }
  void Vector(const char* name, int64_t size) const { writer.Declare(prefix + name, std::array{size}); }
};

void DeclareLayer(const Declare& declare, const TinyModelParams& params, const Traits& traits) {
  const int64_t embedding = Embedding(params);
  const int64_t q_rows = int64_t{params.num_q_heads} * params.head_dim;
  const int64_t kv_rows = int64_t{params.num_kv_heads} * params.head_dim;
  const int64_t feed_forward = params.feed_forward;
  declare.Vector("attn_norm.weight", embedding);
  if (traits.fused) {
    declare.Matrix("attn_qkv.weight", embedding, q_rows + 2 * kv_rows);
  } else {
    declare.Matrix("attn_q.weight", embedding, q_rows);
    declare.Matrix("attn_k.weight", embedding, kv_rows);
    declare.Matrix("attn_v.weight", embedding, kv_rows);
    declare.Matrix("ffn_gate.weight", embedding, feed_forward);
  }
  if (traits.biases && params.qkv_bias) {
    declare.Vector("attn_q.bias", q_rows);
    declare.Vector("attn_k.bias", kv_rows);
    declare.Vector("attn_v.bias", kv_rows);
  }
  if (traits.qk_norms) {
    declare.Vector("attn_q_norm.weight", params.head_dim);
    declare.Vector("attn_k_norm.weight", params.head_dim);
  }
  if (traits.post_norms) {
    declare.Vector("post_attention_norm.weight", embedding);
    declare.Vector("post_ffw_norm.weight", embedding);
  }
  declare.Matrix("attn_output.weight", q_rows, embedding);
  declare.Vector("ffn_norm.weight", embedding);
  declare.Matrix("ffn_up.weight", embedding, traits.fused ? 2 * feed_forward : feed_forward);
  declare.Matrix("ffn_down.weight", feed_forward, embedding);
}

void DeclareTensors(GgufWriter& writer, const TinyModelParams& params, const Traits& traits) {
  const Declare whole{writer, ""};
  whole.Matrix("token_embd.weight", Embedding(params), params.vocab_size);
  for (uint32_t layer = 0; layer < params.num_layers; ++layer) {
    DeclareLayer({writer, "blk." + std::to_string(layer) + "."}, params, traits);
  }
  if (params.scaling == TinyScaling::kLlama3) {
    whole.Vector("rope_freqs.weight", RopeDims(params) / 2);
  } else if (params.scaling == TinyScaling::kLongRope) {
    whole.Vector("rope_factors_long.weight", RopeDims(params) / 2);
    whole.Vector("rope_factors_short.weight", RopeDims(params) / 2);
  }
  whole.Vector("output_norm.weight", Embedding(params));
  if (!params.tied_embeddings) {
    whole.Matrix("output.weight", Embedding(params), params.vocab_size);
  }
}

// Llama 3: long wavelengths are divided by the factor, short ones not at all, with a ramp between.
void FillFreqFactors(const TinyModelParams& params, std::span<float> factors) {
  const float original = static_cast<float>(params.context_length) / params.scaling_factor;
  const float long_wave = original;          // low_freq_factor 1
  const float short_wave = original / 4.0F;  // high_freq_factor 4
  for (size_t i = 0; i < factors.size(); ++i) {
    const float exponent = 2.0F * static_cast<float>(i) / static_cast<float>(params.head_dim);
    const float wave = 2.0F * std::numbers::pi_v<float> * std::pow(params.rope_base, exponent);
    const float smooth = std::clamp((original / wave - 1.0F) / 3.0F, 0.0F, 1.0F);
    factors[i] = wave < short_wave  ? 1.0F
                 : wave > long_wave ? params.scaling_factor
                                    : 1.0F / ((1.0F - smooth) / params.scaling_factor + smooth);
  }
}

class Weights {
 public:
  explicit Weights(const TinyModelParams& params, const Traits& traits) : params_(params), traits_(traits) {}

  void Fill(const std::string& name, std::span<float> values, size_t columns) {
    random_.seed(params_.seed ^ Hash64(std::as_bytes(std::span(name))));
    if (name == "rope_freqs.weight") {
      FillFreqFactors(params_, values);
    } else if (name.starts_with("rope_factors_")) {
      FillUniform(values, 1.0F, name.starts_with("rope_factors_long") ? params_.scaling_factor : 1.5F);
    } else if (name.ends_with("_q_norm.weight") || name.ends_with("_k_norm.weight")) {
      FillUniform(values, 0.5F * std::sqrt(params_.gain), 1.5F * std::sqrt(params_.gain));
    } else if (name.ends_with("norm.weight")) {
      FillNorm(values, name == "output_norm.weight");
    } else if (name.ends_with(".bias")) {
      FillNormal(values, 0.5F);
    } else if (name.ends_with("attn_qkv.weight")) {
      FillFused(values, columns);
    } else {
      FillNormal(values, Gain(name) / std::sqrt(static_cast<float>(columns)));
    }
  }

 private:
  // A product with a normed row has this standard deviation. Scores are q·k / sqrt(d): sqrt(gain) each.
  float Gain(std::string_view name) const {
    if (!traits_.qk_norms && (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight"))) {
      return std::sqrt(params_.gain);
    }
    return name == "output.weight" || name == "token_embd.weight" ? params_.gain : 1.0F;
  }

  void FillFused(std::span<float> values, size_t columns) {
    const size_t value_rows = size_t{params_.num_kv_heads} * params_.head_dim;
    const size_t scored = values.size() - value_rows * columns;
    const float deviation = 1.0F / std::sqrt(static_cast<float>(columns));
    FillNormal(values.first(scored), std::sqrt(params_.gain) * deviation);
    FillNormal(values.subspan(scored), deviation);
  }

  void FillNormal(std::span<float> values, float deviation) {
    std::normal_distribution<float> normal(0.0F, deviation);
    std::generate(values.begin(), values.end(), [&] { return normal(random_); });
  }

  void FillUniform(std::span<float> values, float least, float most) {
    std::uniform_real_distribution<float> uniform(least, most);
    std::generate(values.begin(), values.end(), [&] { return uniform(random_); });
  }

  // Random signs before the output keep a tied embedding from naming the input token again.
  void FillNorm(std::span<float> values, bool signs) {
    FillUniform(values, 0.5F, 1.5F);
    for (float& value : values) {
      value = signs && random_() % 2 == 0 ? -value : value;
    }
  }

  const TinyModelParams& params_;
  const Traits& traits_;
  std::mt19937_64 random_;
};

}  // namespace

Status WriteTinyModel(const TinyModelParams& params, const std::string& path) {
  const Traits* traits = FindTraits(params.architecture);
  if (traits == nullptr) {
    return {StatusCode::kInvalidArgument, "tiny model: no architecture " + params.architecture};
  }
  if (params.num_layers == 0 || params.num_kv_heads == 0 || params.num_q_heads == 0 || params.feed_forward == 0 ||
      params.head_dim < 2 || params.vocab_size < kMinTinyVocab) {
    return {StatusCode::kInvalidArgument,
            "tiny model: sizes of at least 1, head size 2, vocabulary " + std::to_string(kMinTinyVocab)};
  }
  GgufWriter writer;
  const Keys keys{writer.metadata(), params.architecture + "."};
  AddHyperParameters(keys, params);
  AddScaling(keys, params);
  AddWindowsAndCaps(keys, params);
  AddTinyTokenizer(writer.metadata(), params.vocab_size, params.pre);
  DeclareTensors(writer, params, *traits);
  Weights weights(params, *traits);
  return writer.Write(path, [&](const std::string& name, std::span<float> values, size_t columns) {
    weights.Fill(name, values, columns);
    return OkStatus();
  });
}

}  // namespace kvant::test
