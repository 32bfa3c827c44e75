#include "kvant/codec/spectrum.h"

#include <array>

#include "codec/words.h"

namespace kvant::codec {
namespace {

constexpr std::array kRules = {Name{std::string_view("greedy"), TierRule::kGreedy},
                               Name{std::string_view("sink-protect"), TierRule::kSinkProtect},
                               Name{std::string_view("balanced"), TierRule::kBalanced},
                               Name{std::string_view("balanced-even"), TierRule::kBalancedEven},
                               Name{std::string_view("adaptive"), TierRule::kAdaptive},
                               Name{std::string_view("random"), TierRule::kRandom}};
constexpr std::array kImportances = {Name{std::string_view("attention"), Importance::kAttention},
                                     Name{std::string_view("sampled"), Importance::kSampled},
                                     Name{std::string_view("norm"), Importance::kNorm},
                                     Name{std::string_view("position"), Importance::kPosition}};
constexpr std::array kScopes = {Name{std::string_view("head"), RankScope::kHead},
                                Name{std::string_view("layer"), RankScope::kLayer},
                                Name{std::string_view("model"), RankScope::kModel}};
constexpr std::array kInt4Layouts = {Name{std::string_view("rows"), false}, Name{std::string_view("pages"), true}};
constexpr std::array kKept = {Name{std::string_view("best"), TierRule::kSws},
                              Name{std::string_view("prefix"), TierRule::kSwsPrefix}};

Status TakeNumber(std::string_view option, std::string_view text, double* number) {
  return ParseNumber(text, number) ? OkStatus() : Invalid(option, "must be a decimal number");
}

bool IsSws(TierRule rule) { return rule == TierRule::kSws || rule == TierRule::kSwsPrefix; }

}  // namespace

Result<std::optional<Spectrum>> ParseSpectrum(std::string_view kind) {
  const size_t colon = kind.find(':');
  const std::string_view name = kind.substr(0, colon);
  std::string_view budget = colon == std::string_view::npos ? std::string_view() : kind.substr(colon + 1);
  Spectrum spectrum;
  if (name == "pdtrim" || name == "sws") {
    spectrum.rule = name == "sws" ? TierRule::kSws : TierRule::kPdTrim;
  } else if (name == "spectrum" || name == "progressive") {
    spectrum.progressive = name == "progressive";
    if (colon == std::string_view::npos) {
      return std::optional(spectrum);
    }
    if (!budget.starts_with("b=")) {
      return Invalid(budget, "must be a budget, b=B");
    }
    budget.remove_prefix(2);
  } else {
    return std::optional<Spectrum>();
  }
  KVANT_RETURN_IF_ERROR(TakeNumber("b", budget, &spectrum.budget));
  return std::optional(spectrum);
}

Status ApplySpectrumOption(std::string_view name, std::string_view value, Spectrum* spectrum) {
  if (name == "policy" && !IsSelection(spectrum->rule)) {
    return Choose(kRules, name, value, &spectrum->rule);
  }
  if (name == "first" && spectrum->rule == TierRule::kPdTrim) {
    return TakeNumber(name, value, &spectrum->first.emplace());
  }
  if (name == "keep" && IsSws(spectrum->rule)) {
    return Choose(kKept, name, value, &spectrum->rule);
  }
  if (name == "int4" && !spectrum->progressive && !IsSelection(spectrum->rule)) {
    return Choose(kInt4Layouts, name, value, &spectrum->int4_pages);
  }
  if (name == "refine" && spectrum->progressive) {
    return TakeNumber(name, value, &spectrum->refine.emplace());
  }
  if (name == "importance" && spectrum->rule != TierRule::kPdTrim) {
    return Choose(kImportances, name, value, &spectrum->importance);
  }
  if (name == "scope" && spectrum->rule != TierRule::kPdTrim) {
    return Choose(kScopes, name, value, &spectrum->scope);
  }
  if (name == "decay" && spectrum->rule != TierRule::kPdTrim) {
    return TakeNumber(name, value, &spectrum->decay);
  }
  return Invalid(name, spectrum->rule == TierRule::kPdTrim
                           ? "is unknown; known are eq=, sinks=, residual=, first="
                           : "is unknown; known are eq=, sinks=, residual=, policy= (spectrum, progressive), "
                             "importance=, scope=, decay=, int4= (spectrum), refine= (progressive), keep= (sws)");
}

Status CheckSpectrum(const Spectrum& spectrum) {
  const bool drops = IsSelection(spectrum.rule) || spectrum.rule == TierRule::kAdaptive;
  const double lowest = drops ? 0.0 : 0.25;
  if (!(spectrum.budget >= lowest && spectrum.budget <= 1.0)) {
    return Invalid("b", "must be from " + Decimal(lowest) + " to 1");
  }
  if (!(spectrum.decay >= 0 && spectrum.decay <= 1)) {
    return Invalid("decay", "must be from 0 to 1");
  }
  if (spectrum.refine && !(*spectrum.refine >= spectrum.budget && *spectrum.refine <= 1)) {
    return Invalid("refine", "must be from b to 1");
  }
  if (spectrum.first && !(*spectrum.first >= 0 && *spectrum.first <= 1)) {
    return Invalid("first", "must be from 0 to 1");
  }
  const Spectrum defaults;
  const bool ranked = spectrum.importance != defaults.importance || spectrum.scope != defaults.scope ||
                      spectrum.decay != defaults.decay;
  if (ranked && !RanksTokens(spectrum.rule)) {
    return Invalid("importance, scope or decay", "has no meaning where tokens are not ranked");
  }
  return OkStatus();
}

std::string SpectrumWord(const Spectrum& spectrum) {
  const Spectrum defaults;
  std::string word = spectrum.rule == TierRule::kPdTrim ? "pdtrim:"
                     : IsSws(spectrum.rule)             ? "sws:"
                     : spectrum.progressive             ? "progressive:b="
                                                        : "spectrum:b=";
  word += Decimal(spectrum.budget);
  if (spectrum.rule != defaults.rule && !IsSelection(spectrum.rule)) {
    word += ",policy=" + std::string(TierRuleName(spectrum.rule));
  }
  if (spectrum.rule == TierRule::kSwsPrefix) {
    word += ",keep=prefix";
  }
  if (spectrum.importance != defaults.importance) {
    word += ",importance=" + std::string(ImportanceName(spectrum.importance));
  }
  if (spectrum.scope != defaults.scope) {
    word += ",scope=" + std::string(NameOf(kScopes, spectrum.scope));
  }
  if (spectrum.decay != defaults.decay) {
    word += ",decay=" + Decimal(spectrum.decay);
  }
  if (spectrum.int4_pages) {
    word += ",int4=" + std::string(NameOf(kInt4Layouts, true));
  }
  if (spectrum.refine) {
    word += ",refine=" + Decimal(*spectrum.refine);
  }
  if (spectrum.first) {
    word += ",first=" + Decimal(*spectrum.first);
  }
  return word;
}

bool IsSelection(TierRule rule) { return rule == TierRule::kPdTrim || IsSws(rule); }

bool RanksTokens(TierRule rule) {
  return rule != TierRule::kBalancedEven && rule != TierRule::kRandom && rule != TierRule::kPdTrim &&
         rule != TierRule::kSwsPrefix;
}

std::string_view TierRuleName(TierRule rule) {
  return rule == TierRule::kPdTrim ? "pdtrim" : IsSws(rule) ? "sws" : NameOf(kRules, rule);
}

std::string_view ImportanceName(Importance importance) { return NameOf(kImportances, importance); }

}  // namespace kvant::codec
