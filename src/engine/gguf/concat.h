#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace kvant::engine {

inline void AppendPart(std::string& text, std::string_view part) { text.append(part); }
inline void AppendPart(std::string& text, char part) { text.push_back(part); }
template <typename Number>
requires std::integral<Number> || std::floating_point<Number>
void AppendPart(std::string& text, Number number) { text.append(std::to_string(number)); }

/// The parts behind one another: texts as they are, numbers in decimal.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::string text;
  (AppendPart(text, parts), ...);
  return text;
}

}  // namespace kvant::engine
