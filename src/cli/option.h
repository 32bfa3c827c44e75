#pragma once

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace kvant::cli {

/// KVANT_ and the first long name of `names` ("-n,--max-tokens" → "KVANT_MAX_TOKENS").
std::string EnvironmentTwin(const std::string& names);

/// Values that every option refuses or, for whole numbers, brings into one form: decimal digits, no leading zeros (the
/// parser would take those for octal).
CLI::Validator NotEmpty();
CLI::Validator WholeNumber(bool may_be_negative);

/// Values from `low` to `high`, both included.
template <typename T>
CLI::Validator InRange(T low, T high) {
  const auto check = [low, high](const std::string& word) {
    T value{};
    const bool within = CLI::detail::lexical_cast(word, value) && value >= low && value <= high;
    return within ? std::string() : fmt::format("{} is not from {} to {}", word, low, high);
  };
  return {check, fmt::format("from {} to {}", low, high)};
}

namespace internal {
template <typename T>
struct Element {
  using Type = T;
};
template <typename T>
struct Element<std::vector<T>> : Element<T> {};
template <typename T>
struct Element<std::optional<T>> : Element<T> {};
}  // namespace internal

/// The twin, and the rules for values of type T, on an option.
template <typename T>
CLI::Option* FinishOption(CLI::Option* option, const std::string& names) {
  using Value = typename internal::Element<T>::Type;
  option->envname(EnvironmentTwin(names));
  if constexpr (std::is_integral_v<Value>) {
    option->transform(WholeNumber(std::is_signed_v<Value>));
  }
  return option->transform(NotEmpty());  // the last one is asked first
}

/// An option with its environment twin; the value before parsing is shown as the default in --help.
template <typename T>
CLI::Option* AddOption(CLI::App& command, const std::string& names, T& value, const std::string& help) {
  return FinishOption<T>(command.add_option(names, value, help)->capture_default_str(), names);
}

/// The same for a switch; its twin takes true and false.
CLI::Option* AddSwitch(CLI::App& command, const std::string& names, bool& value, const std::string& help);

/// Two ways of giving one thing: what is given as a flag wins over the environment twin of the other. Giving both as
/// flags, or both in the environment, is left to the caller to refuse.
void LetFlagWin(CLI::Option* first, CLI::Option* second);

}  // namespace kvant::cli
