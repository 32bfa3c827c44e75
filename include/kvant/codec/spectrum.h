#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvant/base/status.h"

namespace kvant::codec {

/// How a prompt's tokens are given to tiers (SpectrumKV section 3; methods.md 3.11, 3.12). The rules themselves are in
/// the policy layer.
enum class TierRule : uint8_t {
  kGreedy,        ///< as many int8 as the budget allows, then fp16; the rest int4
  kSinkProtect,   ///< greedy, then the first 4 tokens to fp16, over the budget by what they cost more
  kBalanced,      ///< the surplus over int4 split 1 : 2 between fp16 and int8, by importance (the authors' code)
  kBalancedEven,  ///< the same counts spread over the positions, whatever their importance (the paper's text)
  kAdaptive,      ///< without int4: fp16 and int8, and below one half int8 and dropped
  kRandom,        ///< greedy's counts, tokens at random
  kPdTrim,        ///< selection: first and last tokens at fp16, the others dropped
  kSws,           ///< selection: the most important tokens at fp16, the others dropped
  kSwsPrefix,     ///< selection: the first tokens, 16 at least (its importance once decayed with the position alone)
};

/// What a token's importance is.
enum class Importance : uint8_t {
  kAttention,  ///< the attention that all the prompt's queries pay it, summed over a KV head's query heads
  kSampled,    ///< that of every 8th block of 16 queries, and of the last one
  kNorm,       ///< ‖k‖ · ‖v‖
  kPosition,   ///< the position heuristic the authors' tables were made with; no attention is read
};

/// Which tokens are ranked together.
enum class RankScope : uint8_t { kHead, kLayer, kModel };

/// Grammar   spectrum:b=B[,policy=greedy|sink-protect|balanced|balanced-even|adaptive|random]
///           [,importance=attention|sampled|norm|position][,scope=head|layer|model][,decay=λ][,int4=rows|pages]
///           pdtrim:B[,first=R]: with R the first R and last 1 - R of what is kept (the method's own paper), else 4
///           sinks and a suffix (SpectrumKV's tables)
///           progressive:b=B[,…][,refine=B2]: the same choice in the progressive code, of equalized keys; tokens are
///           raised to the tiers of a budget B2 while decoding goes on
///           sws:B[,importance=…][,scope=…] or sws:B,keep=prefix
struct Spectrum {
  double budget = 0.5;  ///< mean relative cost of a token: fp16 1, int8 1/2, int4 1/4, dropped 0
  TierRule rule = TierRule::kGreedy;
  Importance importance = Importance::kAttention;
  RankScope scope = RankScope::kHead;
  double decay = 0;                ///< λ of importance · exp(-λ · distance to the last token)
  std::optional<double> first{};   ///< of kPdTrim
  bool int4_pages = false;         ///< the int4 tier lies in pages with keys quantized by channel (Int4PageFormat)
  bool progressive = false;        ///< tiers are cut off one code, so that they can be raised (progressive.h)
  std::optional<double> refine{};  ///< the budget they are raised to
  friend bool operator==(const Spectrum&, const Spectrum&) = default;
};

/// The kind of a precision word, "spectrum:b=0.5"; nothing where it is another kind.
/// Errors  kInvalidArgument: no number where one belongs
Result<std::optional<Spectrum>> ParseSpectrum(std::string_view kind);
/// Errors  kInvalidArgument: unknown, or a value it cannot have
Status ApplySpectrumOption(std::string_view name, std::string_view value, Spectrum* spectrum);
/// Errors  kInvalidArgument: a budget that the rule cannot keep, an option without meaning for the rule
Status CheckSpectrum(const Spectrum& spectrum);
/// The shortest words that parse to the same.
std::string SpectrumWord(const Spectrum& spectrum);

std::string_view TierRuleName(TierRule rule);
/// Whether a rule keeps some tokens at fp16 and drops the others.
bool IsSelection(TierRule rule);
/// Whether a rule looks at the tokens' importance at all.
bool RanksTokens(TierRule rule);
std::string_view ImportanceName(Importance importance);

}  // namespace kvant::codec
