#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace kvant::codec {

/// What stands before the first colon of words that no cache can hold, and that evaluation alone knows
/// (eval/candidate.h).
inline constexpr std::array<std::string_view, 3> kReferenceKinds = {"keys", "kitty", "reselect"};

inline bool IsReferenceWord(std::string_view word) {
  const std::string_view kind = word.substr(0, word.find_first_of(":,"));
  return std::find(kReferenceKinds.begin(), kReferenceKinds.end(), kind) != kReferenceKinds.end();
}

}  // namespace kvant::codec
