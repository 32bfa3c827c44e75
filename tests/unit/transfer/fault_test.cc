#include <gtest/gtest.h>

#include <thread>

#include "support/endpoint_pair.h"
#include "support/fault_endpoint.h"
#include "unit/transfer/rig.h"

namespace kvant::transfer {
namespace {

using std::chrono::milliseconds;
using test::Fault;
using test::FaultEndpoint;
using test::FaultKind;
using test::Outcome;
using test::Rig;
using test::RunBoth;

constexpr uint64_t kMessagesToReceiver = 6;  // hello, 4 layers, finish
constexpr uint64_t kMessagesToSender = 2;    // reply, done

// Deadlines short enough for a test to wait for them.
struct ShortRig : Rig {
  ShortRig() : Rig("int4", 150) {
    sender_options.timeouts = {milliseconds(300), milliseconds(300)};
    receiver_options.timeouts = sender_options.timeouts;
  }
};

class FaultTest : public testing::TestWithParam<test::Carrier> {};

// What holds after any fault: nothing wrong was handed out, and nothing is left behind.
void ExpectSound(Rig& rig, Outcome outcome, transport::Endpoint& sender_end) {
  if (outcome.sender.ok()) {
    EXPECT_TRUE(outcome.received.ok()) << "the sender was told that all was adopted";
  } else {
    EXPECT_FALSE(outcome.sender.message().empty());
    EXPECT_EQ(sender_end.WaitForRoom(1, transport::Deadline::min()).code(), StatusCode::kTransportClosed);
  }
  if (outcome.received.ok()) {
    const cache::Sequence local = rig.LocalPrompt();
    for (uint32_t layer = 0; layer < rig.hello.model.shape.num_layers; ++layer) {
      EXPECT_EQ(test::StoredBytes(outcome.received->sequence.layer(layer), 2),
                test::StoredBytes(local.layer(layer), 2));
    }
  }
  outcome.received = Status(StatusCode::kInternal, "dropped");
  EXPECT_EQ(rig.receiver_account.in_use_bytes(), 0U);
  EXPECT_EQ(rig.sender_account.in_use_bytes(), 0U);
}

struct Ending {
  Status sender;
  Status receiver;
  bool has_struck;
};

Ending RunWithFault(Rig& rig, test::Carrier carrier, bool at_receiver, const Fault& fault) {
  test::EndpointPair pair = test::Connect(carrier);
  FaultEndpoint faulty(std::move(at_receiver ? pair.second : pair.first), fault);
  Outcome outcome = at_receiver ? RunBoth(rig, *pair.first, faulty) : RunBoth(rig, faulty, *pair.second);
  const Ending ending{outcome.sender, outcome.received.status(), faulty.has_struck()};
  ExpectSound(rig, std::move(outcome), at_receiver ? *pair.first : static_cast<transport::Endpoint&>(faulty));
  return ending;
}

TEST_P(FaultTest, EveryFaultAtEveryMessageEndsSound) {
  for (const FaultKind kind : {FaultKind::kDrop, FaultKind::kCut, FaultKind::kExtend, FaultKind::kFlip,
                               FaultKind::kRepeat, FaultKind::kSwap, FaultKind::kDelay, FaultKind::kClose}) {
    for (const bool at_receiver : {true, false}) {
      for (uint64_t message = 0; message < (at_receiver ? kMessagesToReceiver : kMessagesToSender); ++message) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " message " << message);
        Rig rig("int4", 150);
        if (kind == FaultKind::kDrop) {  // what waits for it, waits this long
          rig.sender_options.timeouts = {milliseconds(500), milliseconds(500)};
          rig.receiver_options.timeouts = rig.sender_options.timeouts;
        }
        const Ending ending = RunWithFault(rig, GetParam(), at_receiver, {kind, message, 0.5});
        EXPECT_TRUE(ending.has_struck || kind == FaultKind::kDrop);
      }
    }
  }
}

TEST_P(FaultTest, DamageAnywhereInAMessageIsFoundAndTheSenderIsToldOfIt) {
  for (uint64_t message = 0; message < kMessagesToReceiver; ++message) {
    for (const double where : {0.0, 0.003, 0.02, 0.3, 0.7, 0.99}) {
      for (const FaultKind kind : {FaultKind::kFlip, FaultKind::kCut}) {
        SCOPED_TRACE(testing::Message() << "message " << message << " at " << where);
        Rig rig("int4", 150);
        const Ending ending = RunWithFault(rig, GetParam(), true, {kind, message, where});
        const StatusCode code = ending.receiver.code();
        EXPECT_TRUE(code == StatusCode::kCorruption || code == StatusCode::kOutOfRange ||
                    code == StatusCode::kVersionUnsupported || code == StatusCode::kCapacityExceeded)
            << ending.receiver.message();
        EXPECT_EQ(ending.sender.code(), code) << ending.sender.message();
        EXPECT_EQ(ending.sender.message(), "the peer reports: " + ending.receiver.message());
      }
    }
  }
}

TEST_P(FaultTest, WhatIsLostIsMissedByTheDeadline) {
  ShortRig rig;
  const auto start = transport::Clock::now();
  const Ending ending = RunWithFault(rig, GetParam(), true, {FaultKind::kDrop, kMessagesToReceiver - 1});
  EXPECT_EQ(ending.receiver.code(), StatusCode::kTimeout);
  EXPECT_EQ(ending.sender.code(), StatusCode::kTimeout);
  EXPECT_LT(transport::Clock::now() - start, std::chrono::seconds(5));
}

TEST_P(FaultTest, ALostOrRepeatedLayerIsNamed) {
  Rig rig("int4", 150);
  const Ending lost = RunWithFault(rig, GetParam(), true, {FaultKind::kDrop, 2});
  EXPECT_NE(lost.sender.message().find("layer 2 where layer 1 is due"), std::string::npos) << lost.sender.message();
  const Ending repeated = RunWithFault(rig, GetParam(), true, {FaultKind::kRepeat, 2});
  EXPECT_NE(repeated.sender.message().find("layer 1 where layer 2 is due"), std::string::npos);
}

TEST_P(FaultTest, NobodyAtTheOtherEnd) {
  ShortRig rig;
  test::EndpointPair pair = test::Connect(GetParam());
  {
    Sender sender(pair.first.get(), rig.sender_options);
    EXPECT_EQ(sender.Handshake(rig.hello).code(), StatusCode::kTimeout);
    EXPECT_EQ(sender.Handshake(rig.hello).code(), StatusCode::kTimeout) << "the first error stays";
  }
  pair = test::Connect(GetParam());
  Receiver receiver(pair.second.get(), rig.receiver_options);
  EXPECT_EQ(receiver.Run().status().code(), StatusCode::kTimeout);
}

TEST_P(FaultTest, TheOtherEndIsGone) {
  ShortRig rig;
  test::EndpointPair pair = test::Connect(GetParam());
  pair.second.reset();
  Sender sender(pair.first.get(), rig.sender_options);
  EXPECT_EQ(sender.Handshake(rig.hello).code(), StatusCode::kTransportClosed);
  pair = test::Connect(GetParam());
  pair.first.reset();
  Receiver receiver(pair.second.get(), rig.receiver_options);
  EXPECT_EQ(receiver.Run().status().code(), StatusCode::kTransportClosed);
}

TEST_P(FaultTest, ADroppedSenderCancelsTheSession) {
  Rig rig("int4", 150);
  test::EndpointPair pair = test::Connect(GetParam());
  Receiver receiver(pair.second.get(), rig.receiver_options);
  std::optional<Result<Received>> received;
  std::thread decode([&] { received.emplace(receiver.Run()); });
  {
    Sender sender(pair.first.get(), rig.sender_options);
    const cache::Sequence prompt = rig.ExactPrompt();
    ASSERT_TRUE(sender.Handshake(rig.hello).ok());
    ASSERT_TRUE(sender.SendLayer(0, prompt.layer(0), nullptr).ok());
  }
  decode.join();
  EXPECT_EQ(received->status().code(), StatusCode::kCancelled) << received->status().message();
  EXPECT_EQ(rig.receiver_account.in_use_bytes(), 0U);
}

TEST_P(FaultTest, AnErrorOfPrefillReachesTheReceiver) {
  Rig rig("int4", 150);
  test::EndpointPair pair = test::Connect(GetParam());
  Receiver receiver(pair.second.get(), rig.receiver_options);
  std::optional<Result<Received>> received;
  std::thread decode([&] { received.emplace(receiver.Run()); });
  Sender sender(pair.first.get(), rig.sender_options);
  ASSERT_TRUE(sender.Handshake(rig.hello).ok());
  sender.Abort({StatusCode::kNumeric, "layer 0: NaN at position 3"});
  EXPECT_EQ(sender.Finish(rig.finish).code(), StatusCode::kNumeric);
  decode.join();
  EXPECT_EQ(received->status().code(), StatusCode::kNumeric);
  EXPECT_EQ(received->status().message(), "the peer reports: layer 0: NaN at position 3");
}

TEST_P(FaultTest, ValuesThatAreNotFiniteAreRefusedWithTheLayer) {
  Rig rig("int4", 150);
  test::EndpointPair pair = test::Connect(GetParam());
  Receiver receiver(pair.second.get(), rig.receiver_options);
  std::optional<Result<Received>> received;
  std::thread decode([&] { received.emplace(receiver.Run()); });
  Sender sender(pair.first.get(), rig.sender_options);
  cache::Sequence prompt = rig.ExactPrompt();
  const std::vector<Half> bad(40, Half{0x7C00});
  prompt.layer(1).StoreExact(0, 2, 1, bad.data(), bad.data(), 40);  // in the sinks
  ASSERT_TRUE(sender.Handshake(rig.hello).ok());
  Status status;
  for (uint32_t layer = 0; layer < 4 && status.ok(); ++layer) {
    status = sender.SendLayer(layer, prompt.layer(layer), nullptr);
  }
  status = status.ok() ? sender.Finish(rig.finish) : status;
  decode.join();
  EXPECT_EQ(received->status().code(), StatusCode::kNumeric);
  EXPECT_NE(received->status().message().find("layer 1"), std::string::npos) << received->status().message();
  EXPECT_EQ(status.code(), StatusCode::kNumeric) << status.message();
}

TEST_P(FaultTest, CancelWakesAWaitingSide) {
  for (const bool at_receiver : {true, false}) {
    Rig rig("int8", 150);
    test::EndpointPair pair = test::Connect(GetParam());
    Sender sender(pair.first.get(), rig.sender_options);
    Receiver receiver(pair.second.get(), rig.receiver_options);
    Status sent;
    std::optional<Result<Received>> received;
    std::thread decode([&] { received.emplace(receiver.Run()); });
    ASSERT_TRUE(sender.Handshake(rig.hello).ok());
    std::thread canceller([&] {
      std::this_thread::sleep_for(milliseconds(30));
      at_receiver ? receiver.Cancel() : sender.Cancel();
    });
    const cache::Sequence prompt = rig.ExactPrompt();
    for (uint32_t layer = 0; layer < 4 && sent.ok(); ++layer) {
      std::this_thread::sleep_for(milliseconds(20));
      sent = sender.SendLayer(layer, prompt.layer(layer), nullptr);
    }
    canceller.join();
    decode.join();
    EXPECT_EQ(sent.code(), StatusCode::kCancelled) << sent.message();
    EXPECT_EQ(received->status().code(), StatusCode::kCancelled) << received->status().message();
    EXPECT_EQ(rig.receiver_account.in_use_bytes(), 0U);
  }
}

TEST_P(FaultTest, CancelBeforeTheFirstMessage) {
  ShortRig rig;
  test::EndpointPair pair = test::Connect(GetParam());
  Receiver receiver(pair.second.get(), rig.receiver_options);
  receiver.Cancel();
  EXPECT_EQ(receiver.Run().status().code(), StatusCode::kCancelled);
  Sender sender(pair.first.get(), rig.sender_options);
  EXPECT_EQ(sender.Handshake(rig.hello).code(), StatusCode::kCancelled) << "it was told before it asked";
}

TEST_P(FaultTest, ManySessionsLeaveNothingBehind) {
  Rig rig("int4", 150);
  for (uint64_t round = 0; round < 100; ++round) {
    RunWithFault(rig, GetParam(), true, {FaultKind::kClose, round % kMessagesToReceiver});
  }
  EXPECT_EQ(rig.receiver_account.in_use_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Transports, FaultTest, testing::ValuesIn(test::Carriers()),
                         [](const auto& suite) { return test::CarrierName(suite.param); });

}  // namespace
}  // namespace kvant::transfer
