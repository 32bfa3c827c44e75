#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>

#include "support/gguf_fixture.h"
#include "support/gguf_writer.h"
#include "support/tiny_tokenizer.h"

namespace kvant::test {
namespace {

constexpr float kRopeBase = 10000.0F;

uint32_t Embedding(const TinyModelParams& params) { return params.num_q_heads * params.head_dim; }

void AddHyperParameters(gguf_context* out, const TinyModelParams& params) {
  gguf_set_val_str(out, "general.architecture", "llama");
  gguf_set_val_str(out, "general.name", "tiny");
  gguf_set_val_u32(out, "general.file_type", 0);
  gguf_set_val_u32(out, "llama.vocab_size", params.vocab_size);
  gguf_set_val_u32(out, "llama.context_length", params.context_length);
  gguf_set_val_u32(out, "llama.embedding_length", Embedding(params));
  gguf_set_val_u32(out, "llama.block_count", params.num_layers);
  gguf_set_val_u32(out, "llama.feed_forward_length", params.feed_forward);
  gguf_set_val_u32(out, "llama.attention.head_count", params.num_q_heads);
  gguf_set_val_u32(out, "llama.attention.head_count_kv", params.num_kv_heads);
  gguf_set_val_f32(out, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
  gguf_set_val_u32(out, "llama.rope.dimension_count", params.head_dim);
  gguf_set_val_f32(out, "llama.rope.freq_base", kRopeBase);
}

void AddScaling(gguf_context* out, const TinyModelParams& params) {
  if (params.scaling != TinyScaling::kLinear && params.scaling != TinyScaling::kYarn) {
    return;
  }
  const bool yarn = params.scaling == TinyScaling::kYarn;
  gguf_set_val_str(out, "llama.rope.scaling.type", yarn ? "yarn" : "linear");
  gguf_set_val_f32(out, "llama.rope.scaling.factor", params.scaling_factor);
  if (yarn) {
    const auto original = static_cast<float>(params.context_length) / params.scaling_factor;
    gguf_set_val_u32(out, "llama.rope.scaling.original_context_length", std::max(1U, static_cast<uint32_t>(original)));
  }
}

void DeclareTensors(GgufWriter& writer, const TinyModelParams& params) {
  const int64_t embedding = Embedding(params);
  const int64_t kv_rows = int64_t{params.num_kv_heads} * params.head_dim;
  const int64_t feed_forward = params.feed_forward;
  const auto matrix = [&](const std::string& name, int64_t columns, int64_t rows) {
    writer.Declare(name, std::array{columns, rows});
  };
  const auto vector = [&](const std::string& name, int64_t size) { writer.Declare(name, std::array{size}); };
  matrix("token_embd.weight", embedding, params.vocab_size);
  for (uint32_t layer = 0; layer < params.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    vector(prefix + "attn_norm.weight", embedding);
    matrix(prefix + "attn_q.weight", embedding, embedding);
    matrix(prefix + "attn_k.weight", embedding, kv_rows);
    matrix(prefix + "attn_v.weight", embedding, kv_rows);
    matrix(prefix + "attn_output.weight", embedding, embedding);
    vector(prefix + "ffn_norm.weight", embedding);
    matrix(prefix + "ffn_gate.weight", embedding, feed_forward);
    matrix(prefix + "ffn_up.weight", embedding, feed_forward);
    matrix(prefix + "ffn_down.weight", feed_forward, embedding);
  }
  if (params.scaling == TinyScaling::kLlama3) {
    vector("rope_freqs.weight", params.head_dim / 2);
  }
  vector("output_norm.weight", embedding);
  if (!params.tied_embeddings) {
    matrix("output.weight", embedding, params.vocab_size);
  }
}

// Llama 3: long wavelengths are divided by the factor, short ones not at all, with a ramp between.
void FillFreqFactors(const TinyModelParams& params, std::span<float> factors) {
  const float original = static_cast<float>(params.context_length) / params.scaling_factor;
  const float long_wave = original;          // low_freq_factor 1
  const float short_wave = original / 4.0F;  // high_freq_factor 4
  for (size_t i = 0; i < factors.size(); ++i) {
    const float exponent = 2.0F * static_cast<float>(i) / static_cast<float>(params.head_dim);
    const float wave = 2.0F * std::numbers::pi_v<float> * std::pow(kRopeBase, exponent);
    const float smooth = std::clamp((original / wave - 1.0F) / 3.0F, 0.0F, 1.0F);
    factors[i] = wave < short_wave  ? 1.0F
                 : wave > long_wave ? params.scaling_factor
                                    : 1.0F / ((1.0F - smooth) / params.scaling_factor + smooth);
  }
}

class Weights {
 public:
  explicit Weights(const TinyModelParams& params) : params_(params), random_(params.seed) {}

  void Fill(std::string_view name, std::span<float> values, size_t columns) {
    if (name == "rope_freqs.weight") {
      FillFreqFactors(params_, values);
    } else if (name.ends_with("norm.weight")) {
      FillNorm(values, name == "output_norm.weight");
    } else {
      std::normal_distribution<float> normal(0.0F, Gain(name) / std::sqrt(static_cast<float>(columns)));
      std::generate(values.begin(), values.end(), [&] { return normal(random_); });
    }
  }

 private:
  // A product with a normed row has this standard deviation. Scores are q·k / sqrt(d): sqrt(gain) each.
  float Gain(std::string_view name) const {
    if (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight")) {
      return std::sqrt(params_.gain);
    }
    return name == "output.weight" || name == "token_embd.weight" ? params_.gain : 1.0F;
  }

  // Random signs before the output keep a tied embedding from naming the input token again.
  void FillNorm(std::span<float> values, bool signs) {
    std::uniform_real_distribution<float> magnitude(0.5F, 1.5F);
    for (float& value : values) {
      value = magnitude(random_);
      value = signs && random_() % 2 == 0 ? -value : value;
    }
  }

  const TinyModelParams& params_;
  std::mt19937_64 random_;
};

}  // namespace

Status WriteTinyModel(const TinyModelParams& params, const std::string& path) {
  if (params.num_layers == 0 || params.num_kv_heads == 0 || params.num_q_heads == 0 || params.feed_forward == 0 ||
      params.head_dim < 2 || params.vocab_size < kMinTinyVocab) {
    return {StatusCode::kInvalidArgument,
            "tiny model: sizes of at least 1, head size 2, vocabulary " + std::to_string(kMinTinyVocab)};
  }
  GgufWriter writer;
  AddHyperParameters(writer.metadata(), params);
  AddScaling(writer.metadata(), params);
  AddTinyTokenizer(writer.metadata(), params.vocab_size, params.pre);
  DeclareTensors(writer, params);
  Weights weights(params);
  return writer.Write(path, [&](const std::string& name, std::span<float> values, size_t columns) {
    weights.Fill(name, values, columns);
    return OkStatus();
  });
}

}  // namespace kvant::test
