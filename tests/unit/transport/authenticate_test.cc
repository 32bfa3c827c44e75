#include "kvant/transport/authenticate.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "kvant/transport/loopback.h"
#include "support/endpoint_pair.h"
#include "support/fault_endpoint.h"

namespace kvant::transport {
namespace {

using std::chrono::milliseconds;

Token Secret(const char* text = "correct horse battery staple") { return Token::FromText(text).value(); }
Deadline Soon() { return After(std::chrono::seconds(20)); }

struct Verdicts {
  Status connecting;
  Status accepting;
};

Verdicts Meet(Endpoint& first, const Token& of_first, Endpoint& second, const Token& of_second,
              Deadline deadline = Soon()) {
  Verdicts verdicts;
  std::thread other([&] { verdicts.accepting = Authenticate(second, of_second, Side::kAccepting, deadline); });
  verdicts.connecting = Authenticate(first, of_first, Side::kConnecting, deadline);
  other.join();
  return verdicts;
}

class AuthenticateTest : public testing::TestWithParam<test::Carrier> {
 protected:
  test::EndpointPair pair_ = test::Connect(GetParam());
};

TEST_P(AuthenticateTest, OneTokenOnBothSidesAndTheConnectionGoesOn) {
  const Verdicts verdicts = Meet(*pair_.first, Secret(), *pair_.second, Secret("correct horse battery staple\n"));
  EXPECT_TRUE(verdicts.connecting.ok()) << verdicts.connecting.message();
  EXPECT_TRUE(verdicts.accepting.ok()) << verdicts.accepting.message();
  ASSERT_TRUE(pair_.first->Post(Buffer::Allocate(100).value(), Soon()).ok());
  EXPECT_EQ(pair_.second->Receive(100, Soon()).value().size(), 100U);
}

TEST_P(AuthenticateTest, WithoutATokenOnBothSides) {
  const Verdicts verdicts = Meet(*pair_.first, Token(), *pair_.second, Token());
  EXPECT_TRUE(verdicts.connecting.ok()) << verdicts.connecting.message();
  EXPECT_TRUE(verdicts.accepting.ok()) << verdicts.accepting.message();
}

TEST_P(AuthenticateTest, AnotherTokenIsRefusedOnBothSidesAndNothingCanFollow) {
  const Verdicts verdicts = Meet(*pair_.first, Secret("another secret of some length"), *pair_.second, Secret());
  for (const Status& status : {verdicts.connecting, verdicts.accepting}) {
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_EQ(status.message(), "authentication: token: the other end has another one");
  }
  EXPECT_FALSE(pair_.first->Post(Buffer::Allocate(100).value(), Soon()).ok());
  EXPECT_EQ(pair_.second->Receive(100, Soon()).status().code(), StatusCode::kTransportClosed);
}

TEST_P(AuthenticateTest, ATokenOnOneSideOnlyIsNamed) {
  const Verdicts verdicts = Meet(*pair_.first, Token(), *pair_.second, Secret());
  EXPECT_EQ(verdicts.connecting.message(), "authentication: token: the listening side has one, this side has none");
  EXPECT_EQ(verdicts.accepting.message(), "authentication: token: the connecting side has none, this side has one");
  EXPECT_EQ(verdicts.connecting.code(), StatusCode::kMismatch);
}

TEST_P(AuthenticateTest, WhoSaysNothingIsGivenUpAtTheDeadline) {
  const auto start = Clock::now();
  EXPECT_EQ(Authenticate(*pair_.second, Secret(), Side::kAccepting, After(milliseconds(50))).code(),
            StatusCode::kTimeout);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST_P(AuthenticateTest, WhoSaysSomethingElseIsRefused) {
  for (const size_t num_bytes : {43, 44, 45, 100'000}) {
    test::EndpointPair pair = test::Connect(GetParam());
    Buffer other = Buffer::Allocate(num_bytes).value();
    std::memset(other.bytes().data(), 7, num_bytes);
    ASSERT_TRUE(pair.first->Post(std::move(other), Soon()).ok());
    const Status status = Authenticate(*pair.second, Secret(), Side::kAccepting, Soon());
    EXPECT_EQ(status.code(), num_bytes > 44 ? StatusCode::kCapacityExceeded : StatusCode::kCorruption)
        << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, AuthenticateTest, testing::ValuesIn(test::Carriers()),
                         [](const auto& suite) { return test::CarrierName(suite.param); });

// Every byte that either side says, changed on its way: nobody gets in.
TEST(AuthenticateDamageTest, AChangedMessageIsRefused) {
  for (const bool at_accepting : {true, false}) {
    for (uint64_t message = 0; message < 2; ++message) {
      for (double where = 0; where < 1; where += 0.02) {
        LoopbackPair pair = MakeLoopback().value();
        test::FaultEndpoint faulty(std::move(at_accepting ? pair.second : pair.first),
                                   {test::FaultKind::kFlip, message, where});
        const Verdicts verdicts = at_accepting ? Meet(*pair.first, Secret(), faulty, Secret())
                                               : Meet(faulty, Secret(), *pair.second, Secret());
        const Status& victim = at_accepting ? verdicts.accepting : verdicts.connecting;
        EXPECT_FALSE(victim.ok()) << message << " at " << where;
      }
    }
  }
}

// Messages of one handshake say nothing in another one: nonces are fresh.
TEST(AuthenticateReplayTest, WhatWasHeardBeforeIsRefused) {
  LoopbackPair honest = MakeLoopback().value();
  LoopbackPair attacked = MakeLoopback().value();
  std::vector<std::vector<std::byte>> heard;
  const auto pass = [&](Endpoint& from, Endpoint& to) {
    const Result<Buffer> message = from.Receive(1000, Soon());
    ASSERT_TRUE(message.ok());
    heard.emplace_back(message->bytes().begin(), message->bytes().end());
    Buffer copy = Buffer::Allocate(message->size()).value();
    std::memcpy(copy.bytes().data(), heard.back().data(), copy.size());
    ASSERT_TRUE(to.Post(std::move(copy), Soon()).ok());
  };
  std::thread client([&] { Authenticate(*honest.first, Secret(), Side::kConnecting, Soon()).ok(); });
  LoopbackPair listening = MakeLoopback().value();
  std::thread server([&] { EXPECT_TRUE(Authenticate(*listening.second, Secret(), Side::kAccepting, Soon()).ok()); });
  pass(*honest.second, *listening.first);  // opening
  pass(*listening.first, *honest.second);  // opening
  pass(*honest.second, *listening.first);  // proof
  pass(*listening.first, *honest.second);  // word and proof
  client.join();
  server.join();
  const auto say = [&](const std::vector<std::byte>& bytes) {
    Buffer copy = Buffer::Allocate(bytes.size()).value();
    std::memcpy(copy.bytes().data(), bytes.data(), bytes.size());
    ASSERT_TRUE(attacked.first->Post(std::move(copy), Soon()).ok());
  };
  say(heard[0]);
  say(heard[2]);
  EXPECT_EQ(Authenticate(*attacked.second, Secret(), Side::kAccepting, Soon()).code(), StatusCode::kMismatch);
}

TEST(TokenTest, ShortOnesAreRefusedWithoutShowingThem) {
  const Status status = Token::FromText("hunter2\n").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the token has 7 bytes, must have 16 to 1024");
  EXPECT_FALSE(Token::FromText(std::string(1025, 'x')).ok());
  EXPECT_FALSE(Token::FromText("").ok());
  EXPECT_FALSE(Token().has_value());
}

}  // namespace
}  // namespace kvant::transport
