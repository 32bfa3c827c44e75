#pragma once

#include <sys/socket.h>

#include <string>

#include "kvant/base/status.h"

namespace kvant::transport {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
  std::string text() const;  ///< "127.0.0.1:7000", "[::1]:7000"
};

/// "HOST:PORT", "[IPv6]:PORT", ":PORT" or "PORT"; the host is 127.0.0.1 where there is none.
/// Errors  kInvalidArgument: not of that form; kNotFound: no such host
Result<Address> ParseAddress(const std::string& text);

}  // namespace kvant::transport
