#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"

namespace kvant::engine {

/// Which channels RoPE turns together.
enum class RopeLayout : uint8_t {
  kInterleaved = 0,  ///< channels 2i and 2i+1 (GGUF's `llama` weights are permuted for it)
  kHalves = 1,       ///< channels i and i + dims/2
};

/// How angles are changed beyond the trained context. Llama 3's scaling is kNone with `has_freq_factors`.
enum class RopeScaling : uint8_t { kNone = 0, kLinear = 1, kYarn = 2 };

/// What the gate of the feed-forward network passes through.
enum class Activation : uint8_t { kSilu = 0, kGelu = 1 };

struct RopeParams {
  RopeLayout layout = RopeLayout::kInterleaved;
  uint32_t dims = 0;  ///< channels turned, even, the first ones of a head; the others are left alone
  float base = 10000.0F;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0F;            ///< positions are divided by it; 1 with kNone
  uint32_t original_context = 0;  ///< tokens the model was trained for, before scaling
  float attn_factor = 1.0F;       ///< multiplies the turned rows, beside YaRN's magnitude correction
  bool has_freq_factors = false;  ///< the file has `rope_freqs.weight` [dims / 2], divisors of each pair's frequency
  /// LongRoPE: the file has two such lists, `rope_factors_long` for contexts beyond original_context,
  /// `rope_factors_short`
  bool has_long_factors = false;
  float window_base = 10000.0F;  ///< base and factor of the layers with a sliding window
  float window_factor = 1.0F;
};

/// Shape and constants of a decoder. Ensures head_dim even, num_q_heads % num_kv_heads == 0, all counts >= 1.
struct ModelParams {
  uint32_t num_layers = 0;
  uint32_t embedding = 0;  ///< width of the residual stream
  uint32_t feed_forward = 0;
  uint32_t num_q_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;        ///< of queries, keys and values alike
  uint32_t context_length = 0;  ///< tokens the model is meant for
  uint32_t vocab_size = 0;      ///< rows of token_embd = entries of the tokenizer
  float rms_epsilon = 0.0F;
  bool tied_embeddings = false;  ///< no `output.weight`: token_embd is the output matrix
  RopeParams rope;
  Activation activation = Activation::kSilu;
  float embedding_scale = 1.0F;  ///< of the rows of token_embd as inputs, not as the output matrix
  float query_scale = 1.0F;      ///< of the attention logits
  float attention_cap = 0.0F;    ///< logits become cap · tanh(logit / cap), after the scale; 0: none
  float output_cap = 0.0F;       ///< the same of the output logits
  /// Tokens that a row sees, itself included; 0: all before it. Shapes  [num_layers]
  std::vector<uint32_t> windows;
};

struct TokenizerParams {
  std::string model;  ///< "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre;    ///< how BPE splits text first ("smollm", "llama-bpe"); empty for "llama"
  int32_t bos = -1;   ///< -1: the file names none. libllama finds further end tokens by their text
  int32_t eos = -1;
  int32_t eot = -1;
  bool add_bos = false;  ///< as libllama will do it: the file's word, or the default of `model` and `pre`
  bool add_eos = false;
  std::string chat_template;  ///< Jinja, empty where the file has none
};

/// All the engine needs from a file's header.
struct GgufInfo {
  std::string architecture;  ///< "llama"
  std::string name;          ///< general.name, may be empty
  std::string weight_type;   ///< ggml's name of the type most matrices have ("q4_1")
  ModelParams params;
  TokenizerParams tokenizer;
  uint64_t file_size = 0;
  uint64_t data_offset = 0;  ///< where tensor data starts
  uint64_t num_tensors = 0;
  uint64_t fingerprint = 0;  ///< Hash64 of the bytes before data_offset: metadata and tensor list, not the weights
};

/// Names that `general.architecture` may have: "llama", "qwen2", ….
std::vector<std::string_view> SupportedArchitectures();

/// Largest header (metadata, tokenizer, tensor list) read. Real ones have 2 to 16 MiB.
inline constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{64} << 20;

/// Walk a GGUF file's header whole and check it, before ggml or libllama sees it: both assert on some malformed files.
///
/// Checked  magic and version; every count, length and type against the bytes left; duplicates; tensor types, shapes,
///          alignment, order and ranges; the architecture's hyper-parameters and its exact list of tensors; the
///          tokenizer's arrays, texts, merges and special ids. Tensor data is not read.
/// Errors   kNotFound, kIoError; kCorruption (the file contradicts itself); kVersionUnsupported (GGUF version);
///          kModelUnsupported (architecture, tensor type, tokenizer or option this build does not run).
///          The message has the field and, where there is one, its byte offset
/// Cost     time and memory O(header); one buffer of at most min(file size, kMaxGgufHeaderBytes), touched as read
/// Threads  pure
Result<GgufInfo> CheckGguf(const std::string& path);

}  // namespace kvant::engine
