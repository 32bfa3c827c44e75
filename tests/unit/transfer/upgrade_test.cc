// Upgrades beside an answer: offered, asked for, answered, and what else may come.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "kvant/transfer/answer.h"
#include "kvant/wire/messages.h"
#include "support/endpoint_pair.h"
#include "support/fault_endpoint.h"

namespace kvant::transfer {
namespace {

using codec::Tier;
using std::chrono::milliseconds;
using test::FaultEndpoint;
using test::FaultKind;

constexpr uint64_t kSession = 77;
constexpr uint32_t kTokens = 300;
const Timeouts kTimeouts{milliseconds(2000), milliseconds(2000)};
const codec::CacheShape kShape{3, 2, 64};

const wire::UpgradeOffer kOffer{{{0, kTokens, 0, 0}, {}, {kTokens, 0, 0, 0}}};
const codec::UpgradeLayout kLayout{kShape, kTokens, {kTokens, 0, 0}};

wire::UpgradeRequest RequestOf(uint32_t layer) {
  return {layer, kLayout, std::vector<Tier>(size_t{2} * kTokens, Tier::kInt8)};
}

Buffer UpgradeOf(uint32_t layer, const codec::UpgradeLayout& layout = kLayout) {
  wire::BlockFrame frame = wire::AllocateUpgrade(kSession, layer, layout).value();
  std::ranges::fill(frame.block(), std::byte{static_cast<uint8_t>(layer + 1)});
  return std::move(frame).Seal();
}

// The taking side, until the end: answers each request with what `answer` makes of it.
template <typename Answer>
Status Serve(transport::Endpoint& endpoint, const Answer& answer, bool offers = true) {
  AnswerTaker taker(&endpoint, kSession, kTimeouts);
  if (offers) {
    KVANT_RETURN_IF_ERROR(taker.Offer(kOffer, kShape));
  }
  KVANT_RETURN_IF_ERROR(taker.Ask({.max_tokens = 10, .repeat_penalty = 1}));
  while (true) {
    KVANT_ASSIGN_OR_RETURN(const AnswerTaker::Event event, taker.Next());
    if (std::holds_alternative<wire::AnswerEnd>(event)) {
      return OkStatus();
    }
    if (const auto* request = std::get_if<wire::UpgradeRequest>(&event)) {
      KVANT_RETURN_IF_ERROR(taker.SendUpgrade(answer(*request)));
    }
  }
}

// Looks at the peer until `count` upgrades are here, or something is wrong.
Status Await(AnswerGiver& giver, size_t count, std::vector<ReceivedUpgrade>* upgrades) {
  const transport::Deadline deadline = transport::After(milliseconds(1500));
  while (upgrades->size() < count && transport::Clock::now() < deadline) {
    KVANT_RETURN_IF_ERROR(giver.CheckPeer());
    while (std::optional<ReceivedUpgrade> upgrade = giver.TakeUpgrade()) {
      upgrades->push_back(std::move(*upgrade));
    }
  }
  return OkStatus();
}

struct Given {
  Status status;
  std::vector<ReceivedUpgrade> upgrades;
};

// The giving side: asks for layers 0 and 2.
Given Ask(transport::Endpoint& endpoint) {
  Given given;
  AnswerGiver giver(&endpoint, kTimeouts);
  given.status = giver.TakeRequest().status();
  for (const uint32_t layer : {0U, 2U}) {
    if (given.status.ok() && giver.offer() == kOffer) {
      given.status = giver.RequestUpgrade(RequestOf(layer));
    }
  }
  if (given.status.ok()) {
    given.status = Await(giver, 2, &given.upgrades);
  }
  if (given.status.ok()) {
    given.status = giver.Finish({.reason = 1, .tokens = 4});
  }
  return given;
}

class UpgradeTransferTest : public testing::TestWithParam<test::Carrier> {
 protected:
  test::EndpointPair pair_ = test::Connect(GetParam());
};

TEST_P(UpgradeTransferTest, WhatWasAskedForComesAndIsWhatWasSent) {
  Status served;
  std::thread taker([&] {
    served = Serve(*pair_.first, [](const wire::UpgradeRequest& request) {
      EXPECT_EQ(request.layout, kLayout);
      EXPECT_EQ(request.ids, RequestOf(request.layer).ids);
      return UpgradeOf(request.layer);
    });
  });
  const Given given = Ask(*pair_.second);
  taker.join();
  EXPECT_TRUE(served.ok()) << served.message();
  ASSERT_TRUE(given.status.ok()) << given.status.message();
  ASSERT_EQ(given.upgrades.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(given.upgrades[i].view.layer, 2 * i);
    const std::byte expected{static_cast<uint8_t>(2 * i + 1)};
    EXPECT_TRUE(std::ranges::all_of(given.upgrades[i].view.block, [&](std::byte byte) { return byte == expected; }));
  }
}

TEST_P(UpgradeTransferTest, WhatWasNotAskedForEndsTheAnswer) {
  codec::UpgradeLayout other = kLayout;
  other.moves = {kTokens - 1, 0, 0};
  for (const auto& wrong :
       std::vector<std::function<Buffer()>>{[] { return UpgradeOf(1); }, [&] { return UpgradeOf(0, other); },
                                            [] {
                                              return wire::EncodeDone(kSession, {1, 1}).value();
                                            }}) {
    test::EndpointPair pair = test::Connect(GetParam());
    Status served;
    std::thread taker([&] { served = Serve(*pair.first, [&](const wire::UpgradeRequest&) { return wrong(); }); });
    const Given given = Ask(*pair.second);
    taker.join();
    EXPECT_EQ(given.status.code(), StatusCode::kCorruption) << given.status.message();
    EXPECT_TRUE(given.upgrades.empty());
    EXPECT_EQ(served.code(), StatusCode::kCorruption) << served.message();
  }
}

TEST_P(UpgradeTransferTest, WithoutAnOfferARequestEndsTheAnswer) {
  Status served;
  std::thread taker([&] {
    served = Serve(
        *pair_.first, [](const wire::UpgradeRequest& request) { return UpgradeOf(request.layer); }, false);
  });
  AnswerGiver giver(pair_.second.get(), kTimeouts);
  ASSERT_TRUE(giver.TakeRequest().ok());
  EXPECT_FALSE(giver.offer().has_value());
  const transport::Deadline deadline = transport::After(milliseconds(1000));
  ASSERT_TRUE(pair_.second->Post(wire::EncodeUpgradeRequest(kSession, RequestOf(0)).value(), deadline).ok());
  taker.join();
  EXPECT_EQ(served.code(), StatusCode::kCorruption) << served.message();
}

// Whatever happens to a message, an upgrade that is handed out is one that was sent.
TEST_P(UpgradeTransferTest, EveryFaultAtEveryMessageIsFoundOrHarmless) {
  constexpr uint64_t kMessagesToGiver = 4;  // offer, request, two upgrades
  for (const FaultKind kind : {FaultKind::kDrop, FaultKind::kCut, FaultKind::kExtend, FaultKind::kFlip,
                               FaultKind::kRepeat, FaultKind::kSwap, FaultKind::kDelay, FaultKind::kClose}) {
    for (uint64_t message = 0; message < kMessagesToGiver; ++message) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " message " << message);
      test::EndpointPair pair = test::Connect(GetParam());
      FaultEndpoint faulty(std::move(pair.second), {kind, message, 0.7});
      std::thread taker([&] {
        static_cast<void>(Serve(*pair.first, [](const wire::UpgradeRequest& r) { return UpgradeOf(r.layer); }));
      });
      const Given given = Ask(faulty);
      pair.first->Close();
      taker.join();
      for (const ReceivedUpgrade& upgrade : given.upgrades) {
        const Buffer sent = UpgradeOf(upgrade.view.layer);
        EXPECT_TRUE(std::ranges::equal(upgrade.bytes.bytes(), sent.bytes()));
      }
      const bool damaged = kind == FaultKind::kCut || kind == FaultKind::kExtend || kind == FaultKind::kFlip ||
                           kind == FaultKind::kRepeat || kind == FaultKind::kClose;
      EXPECT_TRUE(!damaged || !given.status.ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, UpgradeTransferTest, testing::ValuesIn(test::Carriers()),
                         [](const auto& suite) { return test::CarrierName(suite.param); });

}  // namespace
}  // namespace kvant::transfer
