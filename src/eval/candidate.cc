#include "kvant/eval/candidate.h"

#include "kvant/codec/reference_words.h"

namespace kvant::eval {
namespace {

constexpr std::string_view kExactValues = "keys:";
constexpr std::string_view kKitty = "kitty:";
constexpr std::string_view kReselect = "reselect:";
constexpr std::string_view kKittyWidths = "pnmix:4/2@";

bool Skip(std::string_view prefix, std::string_view* word) {
  const bool found = word->starts_with(prefix);
  word->remove_prefix(found ? prefix.size() : 0);
  return found;
}

Status Invalid(std::string_view word, std::string_view why) {
  return {StatusCode::kInvalidArgument, "precision '" + std::string(word) + "' " + std::string(why)};
}

// "12.5%,v=4": the rule is Kitty's own, so that one given beside it is given twice.
std::string KittyAsPairs(std::string_view rest) {
  const std::string_view percent = rest.substr(0, rest.find(','));
  return std::string(kKittyWidths) + std::string(percent) + ",rule=magnitude" +
         std::string(rest.substr(percent.size()));
}

Status CheckStart(std::string_view word, const Candidate& candidate) {
  const codec::Precision& precision = candidate.precision;
  if (precision.pairs && precision.maps_of_model) {
    return Invalid(word, "is a reference, whose maps are of the prompt: map=model has no meaning for it");
  }
  return precision.pairs ? OkStatus() : Invalid(word, "is a reference of pair pages");
}

}  // namespace

Result<Candidate> ParseCandidate(std::string_view word) {
  Candidate candidate;
  std::string_view rest = word;
  candidate.exact_values = Skip(kExactValues, &rest);
  std::string start;
  if (Skip(kKitty, &rest)) {
    candidate.keys = KeysOf::kPageChannels;
    start = KittyAsPairs(rest);
  } else if (Skip(kReselect, &rest)) {
    candidate.keys = KeysOf::kReselection;
    start = rest;
  } else {
    start = rest;
  }
  Result<codec::Precision> precision = codec::ParsePrecision(start);
  KVANT_RETURN_IF_ERROR(precision.status().WithContext("precision '" + std::string(word) + "'"));
  candidate.precision = *precision;
  if (candidate.is_reference()) {
    KVANT_RETURN_IF_ERROR(CheckStart(word, candidate));
  }
  return candidate;
}

std::string CandidateWord(const Candidate& candidate) {
  std::string word = codec::PrecisionWord(candidate.precision);
  if (candidate.keys == KeysOf::kPageChannels) {
    codec::PairPrecision pairs = *candidate.precision.pairs;
    pairs.score = codec::PairScore::kNormProduct;  // pnmix's own, which a word need not say
    word = std::string(kKitty) + codec::PairPrecisionWord(pairs).substr(kKittyWidths.size());
  } else if (candidate.keys == KeysOf::kReselection) {
    word = std::string(kReselect) + word;
  }
  return candidate.exact_values ? std::string(kExactValues) + word : word;
}

}  // namespace kvant::eval
