#include "transport/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <memory>

namespace kvant::transport {
namespace {

constexpr const char* kDefaultHost = "127.0.0.1";

struct HostAndPort {
  std::string host;
  uint16_t port = 0;
};

Status Malformed(const std::string& text) {
  return {StatusCode::kInvalidArgument, "'" + text + "' is not HOST:PORT, with a port from 0 to 65535"};
}

// The port after the last colon; an IPv6 host stands in brackets.
Result<HostAndPort> Split(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string digits = colon == std::string::npos ? text : text.substr(colon + 1);
  HostAndPort split{colon == std::string::npos ? "" : text.substr(0, colon), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), split.port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return Malformed(text);
  }
  if (split.host.size() > 2 && split.host.front() == '[' && split.host.back() == ']') {
    split.host = split.host.substr(1, split.host.size() - 2);
  } else if (split.host.find_first_of(":[]") != std::string::npos) {
    return Malformed(text);
  }
  return split;
}

const in6_addr& Ipv6Of(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
}
in_addr Ipv4Of(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr; }

}  // namespace

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&Ipv6Of(storage)) != 0;
  }
  return ntohl(Ipv4Of(storage).s_addr) >> 24 == 127;
}

std::string Address::text() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &Ipv6Of(storage), host, sizeof(host));
    const uint16_t port = ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    return std::string("[").append(host).append("]:").append(std::to_string(port));
  }
  const in_addr address = Ipv4Of(storage);
  inet_ntop(AF_INET, &address, host, sizeof(host));
  return std::string(host) + ":" + std::to_string(ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port));
}

Result<Address> ParseAddress(const std::string& text) {
  KVANT_ASSIGN_OR_RETURN(const HostAndPort split, Split(text));
  const std::string host = split.host.empty() ? kDefaultHost : split.host;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(split.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kNotFound, "no such host: " + host + " (" + gai_strerror(error) + ")");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  return address;
}

}  // namespace kvant::transport
