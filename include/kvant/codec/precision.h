#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvant/base/status.h"
#include "kvant/codec/pair_precision.h"
#include "kvant/codec/spectrum.h"
#include "kvant/codec/token_codec.h"

namespace kvant::codec {

/// Layers, KV heads and channels of a model's cache.
struct CacheShape {
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  friend bool operator==(const CacheShape&, const CacheShape&) = default;
};

/// A precision word, parsed: how the KV of a sequence is stored (design.md, "Command line").
///
/// Grammar   fp16 | int8 | int4 | spectrum:b=B | progressive:b=B | pdtrim:B | sws:B, then options after commas:
///           eq=on|off|model, sinks=N, residual=N|inf, and those of Spectrum; or a word of PairPrecision
/// Defaults  eq=on, sinks=4, residual=128; int4 is affine with eq=on and symmetric (the paper's) with eq=off
struct Precision {
  TokenCodec codec = TokenCodec::kInt8;  ///< with `spectrum` of generated tokens only
  bool equalize = true;
  uint32_t num_sinks = 4;                ///< first tokens, kept at fp16; at most kMaxSinks
  uint32_t residual = kDefaultResidual;  ///< generated tokens that wait at fp16; kEndlessResidual: all of them
  std::optional<Spectrum> spectrum{};    ///< the prompt's tokens beyond the sinks go to tiers
  std::optional<PairPrecision> pairs{};  ///< tokens beyond the sinks go to pair pages, a whole page at a time
  bool maps_of_model = false;  ///< equalization or widths are the model's for all prompts, not each prompt's own

  static constexpr uint32_t kMaxSinks = 128;
  static constexpr uint32_t kDefaultResidual = 128;
  static constexpr uint32_t kEndlessResidual = UINT32_MAX;

  bool has_int4_pages() const { return spectrum && spectrum->int4_pages; }
  bool is_progressive() const { return spectrum && spectrum->progressive; }
  bool is_exact() const { return codec == TokenCodec::kFp16; }
  /// Whether a token's codes depend on other tokens of the prompt, later ones too: by maps made of it, or by ranks.
  bool DependsOnPrompt() const { return spectrum || ((pairs || equalize) && !maps_of_model); }
  friend bool operator==(const Precision&, const Precision&) = default;
};

/// Errors  kPrecisionUnsupported: an unknown word, with the list of known ones;
///         kInvalidArgument: an option that is unknown, repeated, out of range or without meaning for the word
Result<Precision> ParsePrecision(std::string_view word);

/// Whether heads of this size can be stored so. Errors  kModelUnsupported, kInvalidArgument: head dimension and group
Status CheckPrecision(const Precision& precision, uint32_t head_dim);

/// The shortest word that parses to the same Precision.
std::string PrecisionWord(const Precision& precision);

/// Payload: codes only. Effective: everything stored, a mean over the elements of the tokens counted.
struct BitsPerElement {
  double payload = 0;
  double effective = 0;
};

}  // namespace kvant::codec
