#include "kvant/transfer/answer.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "support/endpoint_pair.h"
#include "support/fault_endpoint.h"

namespace kvant::transfer {
namespace {

using std::chrono::milliseconds;
using test::FaultEndpoint;
using test::FaultKind;

constexpr uint64_t kSession = 77;
constexpr uint64_t kMessagesToTaker = 4;  // three texts, the end
const Timeouts kTimeouts{milliseconds(2000), milliseconds(2000)};

wire::AnswerRequest Request() { return {.max_tokens = 10, .repeat_penalty = 1, .grammar = "root ::= \"a\""}; }
wire::AnswerText Text(uint32_t tokens) { return {tokens * 1000, tokens, "word "}; }
wire::AnswerEnd End() { return {.reason = 1, .tokens = 4, .kv_bytes = 1234, .payload_bits = 8, .effective_bits = 8.5}; }

struct Taken {
  std::string text;
  std::optional<wire::AnswerEnd> end;
  Status status;
};

Taken TakeAll(transport::Endpoint& endpoint) {
  AnswerTaker taker(&endpoint, kSession, kTimeouts);
  Taken taken;
  taken.status = taker.Ask(Request());
  while (taken.status.ok() && !taken.end) {
    const Result<AnswerTaker::Event> event = taker.Next();
    taken.status = event.status();
    if (event.ok() && std::holds_alternative<wire::AnswerText>(*event)) {
      taken.text += std::get<wire::AnswerText>(*event).text;
    } else if (event.ok()) {
      taken.end = std::get<wire::AnswerEnd>(*event);
    }
  }
  return taken;
}

Status GiveAll(transport::Endpoint& endpoint) {
  AnswerGiver giver(&endpoint, kTimeouts);
  KVANT_ASSIGN_OR_RETURN(const wire::AnswerRequest request, giver.TakeRequest());
  EXPECT_EQ(request, Request());
  for (uint32_t tokens = 1; tokens < 4; ++tokens) {
    KVANT_RETURN_IF_ERROR(giver.CheckPeer());
    KVANT_RETURN_IF_ERROR(giver.SendText(Text(tokens)));
  }
  return giver.Finish(End());
}

class AnswerTest : public testing::TestWithParam<test::Carrier> {
 protected:
  test::EndpointPair pair_ = test::Connect(GetParam());
};

TEST_P(AnswerTest, TextComesInOrderAndThenTheEnd) {
  Status given;
  std::thread giver([&] { given = GiveAll(*pair_.second); });
  const Taken taken = TakeAll(*pair_.first);
  giver.join();
  EXPECT_TRUE(given.ok()) << given.message();
  EXPECT_TRUE(taken.status.ok()) << taken.status.message();
  EXPECT_EQ(taken.text, "word word word ");
  EXPECT_EQ(taken.end, End());
}

TEST_P(AnswerTest, EveryFaultAtEveryMessageIsFoundOrHarmless) {
  for (const FaultKind kind : {FaultKind::kDrop, FaultKind::kCut, FaultKind::kExtend, FaultKind::kFlip,
                               FaultKind::kRepeat, FaultKind::kSwap, FaultKind::kDelay, FaultKind::kClose}) {
    for (uint64_t message = 0; message < kMessagesToTaker; ++message) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " message " << message);
      test::EndpointPair pair = test::Connect(GetParam());
      FaultEndpoint faulty(std::move(pair.first), {kind, message, 0.7});
      std::thread giver([&] { static_cast<void>(GiveAll(*pair.second)); });
      const Taken taken = TakeAll(faulty);
      giver.join();
      if (kind == FaultKind::kCut || kind == FaultKind::kExtend || kind == FaultKind::kFlip ||
          kind == FaultKind::kClose) {
        EXPECT_FALSE(taken.status.ok());
        EXPECT_FALSE(taken.end.has_value());
      }
    }
  }
}

TEST_P(AnswerTest, TheGiversErrorIsNamedByTheTaker) {
  std::thread giver([&] {
    AnswerGiver giving(pair_.second.get(), kTimeouts);
    ASSERT_TRUE(giving.TakeRequest().ok());
    ASSERT_TRUE(giving.SendText(Text(1)).ok());
    EXPECT_EQ(giving.Abort({StatusCode::kNumeric, "a logit is NaN"}).code(), StatusCode::kNumeric);
    EXPECT_EQ(giving.SendText(Text(2)).code(), StatusCode::kNumeric) << "the first error stays";
  });
  const Taken taken = TakeAll(*pair_.first);
  giver.join();
  EXPECT_EQ(taken.status.code(), StatusCode::kNumeric);
  EXPECT_EQ(taken.status.message(), "the peer reports: a logit is NaN");
}

TEST_P(AnswerTest, ATakerThatIsDroppedOrCancelsIsSeenBeforeTheNextToken) {
  for (const bool dropped : {true, false}) {
    test::EndpointPair pair = test::Connect(GetParam());
    AnswerGiver giver(pair.second.get(), kTimeouts);
    {
      AnswerTaker taker(pair.first.get(), kSession, kTimeouts);
      ASSERT_TRUE(taker.Ask(Request()).ok());
      ASSERT_TRUE(giver.TakeRequest().ok());
      EXPECT_TRUE(giver.CheckPeer().ok());
      if (!dropped) {
        taker.Cancel();
        EXPECT_EQ(taker.Next().status().code(), StatusCode::kCancelled);
      }
    }
    const transport::Deadline deadline = transport::After(std::chrono::seconds(10));
    Status status;
    while (status.ok() && transport::Clock::now() < deadline) {
      status = giver.CheckPeer();
    }
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.message();
  }
}

TEST_P(AnswerTest, TokensNeitherGoBackNorBeyondWhatWasAskedFor) {
  for (const uint32_t wrong : {0U, 11U}) {
    test::EndpointPair pair = test::Connect(GetParam());
    std::thread giver([&] {
      AnswerGiver giving(pair.second.get(), kTimeouts);
      ASSERT_TRUE(giving.TakeRequest().ok());
      ASSERT_TRUE(giving.SendText(Text(1)).ok());
      static_cast<void>(giving.SendText(Text(wrong)));
      static_cast<void>(giving.Finish(End()));
    });
    const Taken taken = TakeAll(*pair.first);
    giver.join();
    EXPECT_EQ(taken.status.code(), StatusCode::kCorruption) << taken.status.message();
  }
}

TEST_P(AnswerTest, WhoSaysNothingIsGivenUp) {
  const Timeouts shortly{milliseconds(50), milliseconds(50)};
  AnswerGiver giver(pair_.second.get(), shortly);
  EXPECT_EQ(giver.TakeRequest().status().code(), StatusCode::kTimeout);
  test::EndpointPair pair = test::Connect(GetParam());
  AnswerTaker taker(pair.first.get(), kSession, shortly);
  ASSERT_TRUE(taker.Ask(Request()).ok());
  EXPECT_EQ(taker.Next().status().code(), StatusCode::kTimeout);
}

INSTANTIATE_TEST_SUITE_P(Transports, AnswerTest, testing::ValuesIn(test::Carriers()),
                         [](const auto& suite) { return test::CarrierName(suite.param); });

}  // namespace
}  // namespace kvant::transfer
