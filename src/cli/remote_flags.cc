#include "cli/remote_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/generate_flags.h"

namespace kvant::cli {
namespace {

constexpr const char* kTokenVariable = "KVANT_TOKEN";

void WarnOfReaders(const std::string& path, Console& console) {
  std::error_code error;
  const std::filesystem::perms allowed = std::filesystem::status(path, error).permissions();
  if (!error && (allowed & std::filesystem::perms::others_read) != std::filesystem::perms::none) {
    console.PrintWarning(fmt::format("--token-file {}: every user of this machine can read it", path));
  }
}

}  // namespace

void AddRemoteFlags(CLI::App& command, RemoteFlags& flags) {
  AddOption(command, "--token-file", flags.token_file,
            "File with a secret of 16 bytes or more that both sides prove to know; or its text in KVANT_TOKEN");
  AddOption(command, "--timeout", flags.timeout_s, "Seconds that either side may keep the other waiting")
      ->check(InRange(0.1, 86'400.0));
}

Result<transport::Token> ReadToken(const RemoteFlags& flags, Console& console) {
  if (!flags.token_file.empty()) {
    KVANT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--token-file", flags.token_file));
    WarnOfReaders(flags.token_file, console);
    Result<transport::Token> token = transport::Token::FromText(text);
    return token.ok() ? std::move(token) : token.status().WithContext("--token-file " + flags.token_file);
  }
  const char* text = std::getenv(kTokenVariable);
  if (text == nullptr) {
    return transport::Token();
  }
  Result<transport::Token> token = transport::Token::FromText(text);
  return token.ok() ? std::move(token) : token.status().WithContext(kTokenVariable);
}

transfer::Timeouts TimeoutsOf(const RemoteFlags& flags) {
  const auto message = std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000));
  return {.handshake = std::min(message, transfer::Timeouts().handshake), .message = message};
}

}  // namespace kvant::cli
