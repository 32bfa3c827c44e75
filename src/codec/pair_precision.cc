#include "kvant/codec/pair_precision.h"

#include <algorithm>
#include <array>
#include <vector>

#include "codec/words.h"

namespace kvant::codec {
namespace {

constexpr std::array kScores = {Name{std::string_view("qk"), PairScore::kNormProduct},
                                Name{std::string_view("k"), PairScore::kKeyNorm},
                                Name{std::string_view("energy"), PairScore::kEnergySum},
                                Name{std::string_view("qrange"), PairScore::kQueryRange},
                                Name{std::string_view("magnitude"), PairScore::kMagnitude},
                                Name{std::string_view("range"), PairScore::kRange},
                                Name{std::string_view("error"), PairScore::kError},
                                Name{std::string_view("random"), PairScore::kRandom}};
// What `pairs:B` can give out its bits by.
constexpr std::array kAllocations = {Name{std::string_view("error"), PairScore::kError},
                                     Name{std::string_view("energy"), PairScore::kEnergySum}};
constexpr std::array kRules = {Name{std::string_view("minmax"), PairRule::kMinMax},
                               Name{std::string_view("midrise"), PairRule::kMidRise}};
constexpr std::array kOneBitRules = {Name{std::string_view("quarter"), OneBitRule::kQuarterPoints},
                                     Name{std::string_view("ends"), OneBitRule::kEndPoints},
                                     Name{std::string_view("means"), OneBitRule::kMeans}};
constexpr std::array kSwitches = {Name{std::string_view("on"), true}, Name{std::string_view("off"), false}};
constexpr std::array kMaps = {Name{std::string_view("prompt"), false}, Name{std::string_view("model"), true}};

Status ParseCount(std::string_view option, std::string_view text, uint32_t low, uint32_t high, uint32_t* count) {
  return ParseNumber(text, count) && *count >= low && *count <= high
             ? OkStatus()
             : Invalid(option, "must be a number from " + std::to_string(low) + " to " + std::to_string(high));
}

Status ParseOneOf(std::string_view option, std::string_view text, std::initializer_list<uint32_t> known,
                  uint32_t* count) {
  if (ParseNumber(text, count) && std::find(known.begin(), known.end(), *count) != known.end()) {
    return OkStatus();
  }
  std::string words;
  for (const uint32_t each : known) {
    words += words.empty() ? "" : "|";
    words += std::to_string(each);
  }
  return Invalid(option, "must be one of " + words);
}

// "3/1@50%"
Status ParseTwoWidths(std::string_view text, PairPrecision::TwoWidths* widths) {
  const size_t slash = text.find('/');
  const size_t at = text.find('@');
  if (slash == std::string_view::npos || at == std::string_view::npos || at < slash || !text.ends_with('%')) {
    return Invalid(text, "must be high/low@percent%, such as 3/1@50%");
  }
  const std::string_view percent = text.substr(at + 1, text.size() - at - 2);
  if (!ParseNumber(text.substr(0, slash), &widths->high) ||
      !ParseNumber(text.substr(slash + 1, at - slash - 1), &widths->low) || widths->low < 1 ||
      widths->low > widths->high || widths->high > WidthMap::kMaxKeyBits) {
    return Invalid(text, "must have two widths from 1 to 4, the higher first");
  }
  return ParseNumber(percent, &widths->percent) && widths->percent >= 0 && widths->percent <= 100
             ? OkStatus()
             : Invalid(text, "must give 0 to 100 % of the pairs to the higher width");
}

// What stands to the left of the first comma, with the defaults that belong to it.
Status ParseKind(std::string_view kind, PairPrecision* precision) {
  const std::string_view argument = kind.substr(std::min(kind.find(':'), kind.size() - 1) + 1);
  if (kind.starts_with("pnmix")) {
    precision->score = PairScore::kNormProduct;
    precision->value_bits = 2;
    precision->key_rule = PairRule::kMinMax;
    return ParseTwoWidths(argument, &precision->two_widths.emplace());
  }
  return ParseNumber(argument, &precision->bits) && precision->bits >= 1 && precision->bits <= WidthMap::kMaxKeyBits
             ? OkStatus()
             : Invalid(argument, "must be a mean number of bits from 1 to 4");
}

Status ApplyOption(std::string_view name, std::string_view value, PairPrecision* precision) {
  if (name == "v") return ParseOneOf(name, value, {2, 3, 4, 8}, &precision->value_bits);
  if (name == "g") return ParseOneOf(name, value, {32, 64, 128}, &precision->page_tokens);
  if (name == "vg") {
    return ParseOneOf(name, value, {16, 32, 64, 128, 256}, &precision->value_group);
  }
  if (name == "rec") return Choose(kRules, name, value, &precision->key_rule);
  if (name == "one") return Choose(kOneBitRules, name, value, &precision->one_bit);
  if (name == "vrec") return Choose(kRules, name, value, &precision->value_rule);
  if (name == "vrot") return Choose(kSwitches, name, value, &precision->rotate_values);
  if (name == "map") return Choose(kMaps, name, value, &precision->map_of_model);
  if (name == "sinks") return ParseCount(name, value, 0, PairPrecision::kMaxSinks, &precision->num_sinks);
  if (name == "residual") return ParseCount(name, value, 1, 128, &precision->residual);
  if (name == "rule") {
    return precision->two_widths ? Choose(kScores, name, value, &precision->score)
                                 : Choose(kAllocations, name, value, &precision->score);
  }
  return Invalid(name, "is unknown; known are v=, vg=, g=, rule=, rec=, one=, vrec=, vrot=, map=, sinks=, residual=");
}

// Values of few bits are best turned, and then cut into equal cells (lab.md section 5); the paper's are not.
void SetValueDefaults(PairPrecision* precision) {
  precision->rotate_values = !precision->two_widths && precision->value_bits <= 3;
  precision->value_rule = precision->rotate_values ? PairRule::kMidRise : PairRule::kMinMax;
}

Status CheckLayout(const PairPrecision& precision) {
  return precision.residual <= precision.page_tokens
             ? OkStatus()
             : Invalid("residual", "must be at most the tokens of a page, " + std::to_string(precision.page_tokens));
}

struct Option {
  std::string_view name;
  std::string_view value;
};

Status ParseOptions(std::string_view rest, std::vector<Option>* options) {
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(part.size());
    const size_t equals = std::min(part.find('='), part.size());
    const Option option{part.substr(0, equals), part.substr(std::min(equals + 1, part.size()))};
    for (const Option& earlier : *options) {
      if (earlier.name == option.name) {
        return Invalid(option.name, "is given twice");
      }
    }
    options->push_back(option);
  }
  return OkStatus();
}

Status Parse(std::string_view word, PairPrecision* precision) {
  const std::string_view kind = word.substr(0, word.find(','));
  KVANT_RETURN_IF_ERROR(ParseKind(kind, precision));
  std::vector<Option> options;
  KVANT_RETURN_IF_ERROR(ParseOptions(word.substr(kind.size()), &options));
  // The number of bits first, then whether they are turned: each changes the defaults of what comes after it.
  for (const std::string_view first : {"v", "vrot", "g"}) {
    for (const Option& option : options) {
      if (option.name == first) {
        KVANT_RETURN_IF_ERROR(ApplyOption(option.name, option.value, precision));
      }
    }
    if (first == "v") {
      SetValueDefaults(precision);
    } else if (first == "vrot") {
      precision->value_rule =
          precision->rotate_values && precision->value_bits <= 3 ? PairRule::kMidRise : PairRule::kMinMax;
    } else {
      precision->residual = precision->page_tokens;
    }
  }
  for (const Option& option : options) {
    KVANT_RETURN_IF_ERROR(ApplyOption(option.name, option.value, precision));
  }
  return CheckLayout(*precision);
}

std::string KindWord(const PairPrecision& precision) {
  if (precision.two_widths) {
    const PairPrecision::TwoWidths& widths = *precision.two_widths;
    return "pnmix:" + std::to_string(widths.high) + "/" + std::to_string(widths.low) + "@" + Decimal(widths.percent) +
           "%";
  }
  return "pairs:" + Decimal(precision.bits);
}

}  // namespace

bool IsPairWord(std::string_view word) {
  const std::string_view kind = word.substr(0, word.find_first_of(":,"));
  return kind == "pnmix" || kind == "pairs";
}

Result<PairPrecision> ParsePairPrecision(std::string_view word) {
  if (!IsPairWord(word)) {
    return Status(StatusCode::kPrecisionUnsupported,
                  "precision '" + std::string(word) + "' has no pair pages; pnmix:H/L@R% and pairs:B have");
  }
  PairPrecision precision;
  KVANT_RETURN_IF_ERROR(Parse(word, &precision).WithContext("precision '" + std::string(word) + "'"));
  return precision;
}

std::string PairPrecisionWord(const PairPrecision& precision) {
  std::string word = KindWord(precision);
  const auto add = [&](const std::string& option) {
    const Result<PairPrecision> without = ParsePairPrecision(word);
    const Result<PairPrecision> with = ParsePairPrecision(word + option);
    if (with.ok() && without.ok() && !(*with == *without)) {
      word += option;
    }
  };
  add(",v=" + std::to_string(precision.value_bits));
  if (precision.value_group != 0) {
    add(",vg=" + std::to_string(precision.value_group));
  }
  add(",g=" + std::to_string(precision.page_tokens));
  add(",rule=" + std::string(PairScoreName(precision.score)));
  add(",rec=" + std::string(NameOf(kRules, precision.key_rule)));
  add(",one=" + std::string(NameOf(kOneBitRules, precision.one_bit)));
  add(",vrot=" + std::string(NameOf(kSwitches, precision.rotate_values)));
  add(",vrec=" + std::string(NameOf(kRules, precision.value_rule)));
  add(",map=" + std::string(NameOf(kMaps, precision.map_of_model)));
  add(",sinks=" + std::to_string(precision.num_sinks));
  add(",residual=" + std::to_string(precision.residual));
  return word;
}

std::string_view PairScoreName(PairScore score) { return NameOf(kScores, score); }

}  // namespace kvant::codec
