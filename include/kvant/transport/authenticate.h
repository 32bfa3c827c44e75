#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kvant/base/status.h"
#include "kvant/transport/transport.h"

namespace kvant::transport {

/// A secret that both ends of a connection know. Its memory is wiped when it goes.
class Token {
 public:
  static constexpr size_t kMinBytes = 16;
  static constexpr size_t kMaxBytes = 1024;

  Token() = default;  ///< none
  Token(Token&&) noexcept = default;
  Token& operator=(Token&&) noexcept = default;
  ~Token();

  /// The bytes of a text without the line break at its end.
  /// Errors  kInvalidArgument: too short to be a secret, or too long. The text is never in the message
  static Result<Token> FromText(std::string_view text);

  bool has_value() const { return !bytes_.empty(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

enum class Side : uint8_t { kConnecting, kAccepting };

/// Prove to the other end that we know its token, and demand the same of it. The first messages of a connection; the
/// other end must make the same call as the other side. Where neither has a token, only that is agreed on.
///
/// Each side draws a nonce of 32 bytes and sends HMAC-SHA-256 of both nonces and its role under the token, the
/// connecting side first (docs/format/answer.md, "Before the session"). Proofs are compared in constant time.
///
/// It keeps strangers out of a session. It does not encrypt, and it does not protect what follows: who can change the
/// connection's packets can read the KV and the text, and can take the connection over afterwards. For that, tunnel it.
///
/// Errors  kMismatch: the tokens differ, or only one side has one; kVersionUnsupported; kCorruption, kCapacityExceeded:
///         not these messages; kTimeout, kTransportClosed; kInternal: no random numbers. On error the endpoint is
///         closed
Status Authenticate(Endpoint& endpoint, const Token& token, Side side, Deadline deadline);

}  // namespace kvant::transport
