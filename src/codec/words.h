#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>

#include "kvant/base/status.h"

// Parts of precision words: options with names for values.
namespace kvant::codec {

template <typename Value>
struct Name {
  std::string_view name;
  Value value;
};

inline Status Invalid(std::string_view option, std::string_view why) {
  return {StatusCode::kInvalidArgument, "option '" + std::string(option) + "' " + std::string(why)};
}

/// Errors  kInvalidArgument: not one of the names, which it lists
template <typename Names, typename Value>
Status Choose(const Names& names, std::string_view option, std::string_view word, Value* value) {
  std::string known;
  for (const auto& each : names) {
    if (each.name == word) {
      *value = each.value;
      return OkStatus();
    }
    known += known.empty() ? "" : "|";
    known += each.name;
  }
  return Invalid(option, "must be one of " + known);
}

/// Nothing where no name stands for the value.
template <typename Names, typename Value>
std::string_view NameOf(const Names& names, Value value) {
  for (const auto& each : names) {
    if (each.value == value) {
      return each.name;
    }
  }
  return {};
}

/// A whole and finite number, nothing after it.
template <typename Number>
bool ParseNumber(std::string_view text, Number* number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  if constexpr (std::is_floating_point_v<Number>) {
    return error == std::errc() && rest == end && std::isfinite(*number);
  } else {
    return error == std::errc() && rest == end;
  }
}

/// The shortest decimal that reads back.
inline std::string Decimal(double number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

}  // namespace kvant::codec
