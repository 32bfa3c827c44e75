#include "kvant/transport/authenticate.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace kvant::transport {
namespace {

constexpr uint32_t kMagic = 0x5541564BU;  // "KVAU" as it lies in memory
constexpr uint32_t kVersion = 1;
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr std::string_view kLabel = "kvant authenticate 1";
constexpr std::chrono::milliseconds kLastWords{1000};

// The second message of each side. All zeros: refused.
using Proof = std::array<std::byte, kProofBytes>;

// The first message of each side.
struct Opening {
  uint32_t magic;
  uint32_t version;
  uint32_t has_token;
  std::array<std::byte, kNonceBytes> nonce;
};
static_assert(sizeof(Opening) == 44, "it crosses the connection as it lies in memory");

template <typename T>
Status Send(Endpoint& endpoint, const T& value, Deadline deadline) {
  KVANT_ASSIGN_OR_RETURN(Buffer message, Buffer::Allocate(sizeof(T)));
  std::memcpy(message.bytes().data(), &value, sizeof(T));
  KVANT_RETURN_IF_ERROR(endpoint.WaitForRoom(sizeof(T), deadline));
  KVANT_RETURN_IF_ERROR(endpoint.Post(std::move(message), deadline).status());
  KVANT_ASSIGN_OR_RETURN(const Completion completion, endpoint.Wait(deadline));
  return completion.status;
}

template <typename T>
Result<T> Receive(Endpoint& endpoint, Deadline deadline) {
  KVANT_ASSIGN_OR_RETURN(const Buffer message, endpoint.Receive(sizeof(T), deadline));
  if (message.size() != sizeof(T)) {
    return Status(StatusCode::kCorruption, "a message of " + std::to_string(message.size()) + " bytes where one of " +
                                               std::to_string(sizeof(T)) + " is due");
  }
  T value{};
  std::memcpy(&value, message.bytes().data(), sizeof(T));
  return value;
}

Result<Opening> MakeOpening(const Token& token) {
  Opening opening{kMagic, kVersion, token.has_value() ? 1U : 0U, {}};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(opening.nonce.data()), kNonceBytes) != 1) {
    return Status(StatusCode::kInternal, "no random numbers");
  }
  return opening;
}

Status CheckOpening(const Opening& theirs, const Token& token, Side side) {
  if (theirs.magic != kMagic || theirs.has_token > 1) {
    return {StatusCode::kCorruption, "the other end does not authenticate itself"};
  }
  if (theirs.version != kVersion) {
    return {StatusCode::kVersionUnsupported, "authentication: the other end has version " +
                                                 std::to_string(theirs.version) + ", this one " +
                                                 std::to_string(kVersion)};
  }
  if ((theirs.has_token == 1) == token.has_value()) {
    return OkStatus();
  }
  const char* other = side == Side::kConnecting ? "listening" : "connecting";
  return {StatusCode::kMismatch, token.has_value()
                                     ? std::string("token: the ") + other + " side has none, this side has one"
                                     : std::string("token: the ") + other + " side has one, this side has none"};
}

// What a side of this role proves: that it knows the token, now.
Result<Proof> MakeProof(const Token& token, Side role, const Opening& connecting, const Opening& accepting) {
  std::array<std::byte, kLabel.size() + 1 + 2 * kNonceBytes> text{};
  std::memcpy(text.data(), kLabel.data(), kLabel.size());
  text[kLabel.size()] = std::byte{static_cast<uint8_t>(role)};
  std::memcpy(text.data() + kLabel.size() + 1, connecting.nonce.data(), kNonceBytes);
  std::memcpy(text.data() + kLabel.size() + 1 + kNonceBytes, accepting.nonce.data(), kNonceBytes);
  Proof proof{};
  unsigned num_bytes = 0;
  const auto& key = token.bytes();
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(proof.data()), &num_bytes) == nullptr ||
      num_bytes != kProofBytes) {
    return Status(StatusCode::kInternal, "HMAC-SHA-256 failed");
  }
  return proof;
}

bool Same(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), kProofBytes) == 0; }

Status WrongToken() { return {StatusCode::kMismatch, "token: the other end has another one"}; }

Status ProveConnecting(Endpoint& endpoint, const Token& token, const Opening& ours, const Opening& theirs,
                       Deadline deadline) {
  KVANT_ASSIGN_OR_RETURN(const Proof proof, MakeProof(token, Side::kConnecting, ours, theirs));
  KVANT_RETURN_IF_ERROR(Send(endpoint, proof, deadline));
  KVANT_ASSIGN_OR_RETURN(const Proof answer, Receive<Proof>(endpoint, deadline));
  KVANT_ASSIGN_OR_RETURN(const Proof expected, MakeProof(token, Side::kAccepting, ours, theirs));
  return Same(answer, expected) ? OkStatus() : WrongToken();
}

Status ProveAccepting(Endpoint& endpoint, const Token& token, const Opening& ours, const Opening& theirs,
                      Deadline deadline) {
  KVANT_ASSIGN_OR_RETURN(const Proof proof, Receive<Proof>(endpoint, deadline));
  KVANT_ASSIGN_OR_RETURN(const Proof expected, MakeProof(token, Side::kConnecting, theirs, ours));
  if (!Same(proof, expected)) {
    static_cast<void>(Send(endpoint, Proof{}, std::min(deadline, After(kLastWords))));  // the reason is told, at best
    return WrongToken();
  }
  KVANT_ASSIGN_OR_RETURN(const Proof answer, MakeProof(token, Side::kAccepting, theirs, ours));
  return Send(endpoint, answer, deadline);
}

Status Prove(Endpoint& endpoint, const Token& token, Side side, Deadline deadline) {
  KVANT_ASSIGN_OR_RETURN(const Opening ours, MakeOpening(token));
  Opening theirs{};
  if (side == Side::kConnecting) {
    KVANT_RETURN_IF_ERROR(Send(endpoint, ours, deadline));
    KVANT_ASSIGN_OR_RETURN(theirs, Receive<Opening>(endpoint, deadline));
  } else {
    KVANT_ASSIGN_OR_RETURN(theirs, Receive<Opening>(endpoint, deadline));
    KVANT_RETURN_IF_ERROR(Send(endpoint, ours, deadline));  // where it is refused, the other end sees why by itself
  }
  KVANT_RETURN_IF_ERROR(CheckOpening(theirs, token, side));
  if (!token.has_value()) {
    return OkStatus();
  }
  return side == Side::kConnecting ? ProveConnecting(endpoint, token, ours, theirs, deadline)
                                   : ProveAccepting(endpoint, token, ours, theirs, deadline);
}

}  // namespace

Token::~Token() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Result<Token> Token::FromText(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with('\r')) {
    text.remove_suffix(1);
  }
  if (text.size() < kMinBytes || text.size() > kMaxBytes) {
    return Status(StatusCode::kInvalidArgument, "the token has " + std::to_string(text.size()) + " bytes, must have " +
                                                    std::to_string(kMinBytes) + " to " + std::to_string(kMaxBytes));
  }
  Token token;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  token.bytes_.assign(bytes.begin(), bytes.end());
  return token;
}

Status Authenticate(Endpoint& endpoint, const Token& token, Side side, Deadline deadline) {
  const Status status = Prove(endpoint, token, side, deadline).WithContext("authentication");
  if (!status.ok()) {
    endpoint.Close();
  }
  return status;
}

}  // namespace kvant::transport
