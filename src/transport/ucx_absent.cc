// Stands for the network transport in a build without UCX.
#include "kvant/transport/authenticate.h"
#include "kvant/transport/ucx.h"

namespace kvant::transport {
namespace {

Status Absent() { return {StatusCode::kNotFound, "this build has no network transport: configure with KVANT_UCX=ON"}; }

}  // namespace

bool HasUcx() { return false; }
Result<bool> IsLoopbackAddress(const std::string& /*address*/) { return Absent(); }
Result<std::unique_ptr<UcxListener>> UcxListener::Listen(const std::string& /*address*/,
                                                         const UcxOptions& /*options*/) {
  return Absent();
}
Result<std::unique_ptr<Endpoint>> ConnectUcx(const std::string& /*address*/, Deadline /*deadline*/,
                                             const UcxOptions& /*options*/) {
  return Absent();
}

Token::~Token() = default;
Result<Token> Token::FromText(std::string_view /*text*/) { return Absent(); }
Status Authenticate(Endpoint& /*endpoint*/, const Token& /*token*/, Side /*side*/, Deadline /*deadline*/) {
  return Absent();
}

}  // namespace kvant::transport
