#include "cli/option.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <string_view>

namespace kvant::cli {
namespace {

// Checks of an option that triggers run while flags are read, before the environment is.
void ForgetTwinWhenGiven(CLI::Option* given, CLI::Option* other) {
  const auto count = std::make_shared<int>(0);
  given->trigger_on_parse()->check([other, count](const std::string&) {
    other->envname("");
    return std::string(++*count > 1 ? "is given twice" : "");
  });
}

}  // namespace

std::string EnvironmentTwin(const std::string& names) {
  const size_t start = names.find("--");
  std::string twin = names.substr(start + 2, names.find(',', start) - start - 2);
  std::transform(twin.begin(), twin.end(), twin.begin(),
                 [](unsigned char letter) { return letter == '-' ? '_' : static_cast<char>(std::toupper(letter)); });
  return "KVANT_" + twin;
}

CLI::Validator NotEmpty() {
  const auto check = [](const std::string& word) { return word.empty() ? "the value is empty" : std::string(); };
  return {check, ""};
}

CLI::Validator WholeNumber(bool may_be_negative) {
  const auto transform = [may_be_negative](std::string& word) {
    const size_t sign = may_be_negative && word.starts_with('-') ? 1 : 0;
    const std::string_view digits = std::string_view(word).substr(sign);
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
      return fmt::format("{} is not a whole number{}", word, may_be_negative ? "" : " from 0");
    }
    const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size() - 1);
    word.erase(sign, zeros);
    return std::string();
  };
  return {transform, ""};
}

CLI::Option* AddSwitch(CLI::App& command, const std::string& names, bool& value, const std::string& help) {
  return command.add_flag(names, value, help)->envname(EnvironmentTwin(names));
}

void LetFlagWin(CLI::Option* first, CLI::Option* second) {
  ForgetTwinWhenGiven(first, second);
  ForgetTwinWhenGiven(second, first);
}

}  // namespace kvant::cli
