#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvant/base/status.h"
#include "kvant/codec/precision.h"

namespace kvant::eval {

/// How a reference's encoded keys differ from those of the precision it starts from.
enum class KeysOf : uint8_t {
  kPrecision,     ///< not at all
  kPageChannels,  ///< page by page: the channels of the largest mean magnitude in the page get the higher width (Kitty)
  kReselection,   ///< page by page: the width map that queries and keys up to the page's end ask for
};

/// What is scored: a precision as caches hold it, or a reference, which none holds. A reference is encoded and decoded,
/// laid into an fp16 cache, and so rounded to fp16 once more.
///
/// Grammar   a precision word, or
///           kitty:R%[,options of pnmix]    4 bits for R % of a page's channels, 2 for the others
///           reselect:W                     W a word of pair pages
///           keys:W                         W one of these three: its keys, with values at fp16
struct Candidate {
  codec::Precision precision;
  KeysOf keys = KeysOf::kPrecision;
  bool exact_values = false;

  bool is_reference() const { return exact_values || keys != KeysOf::kPrecision; }
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// Errors  those of codec::ParsePrecision; kInvalidArgument: a reference of a word that it cannot start from
Result<Candidate> ParseCandidate(std::string_view word);

/// The shortest word that parses to the same.
std::string CandidateWord(const Candidate& candidate);

}  // namespace kvant::eval
