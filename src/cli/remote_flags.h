#pragma once

#include <chrono>
#include <string>

#include "cli/command.h"
#include "kvant/transfer/report.h"
#include "kvant/transport/authenticate.h"

namespace kvant::cli {

/// Flags of both ends of a connection.
struct RemoteFlags {
  std::string token_file;
  double timeout_s = 300;
};

/// --token-file, --timeout.
void AddRemoteFlags(CLI::App& command, RemoteFlags& flags);

/// The token of --token-file, else of KVANT_TOKEN, else none. There is no flag for the token itself: every user of a
/// machine can read the flags of its programs.
/// Errors  kNotFound, kIoError: the file; kInvalidArgument: not of a token's length
Result<transport::Token> ReadToken(const RemoteFlags& flags, Console& console);

transfer::Timeouts TimeoutsOf(const RemoteFlags& flags);

}  // namespace kvant::cli
