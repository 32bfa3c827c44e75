#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "support/endpoint_pair.h"

// What transport.h promises, over every transport.
namespace kvant::transport {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;
using test::EndpointPair;

constexpr uint64_t kAnySize = uint64_t{1} << 40;

Deadline Soon() { return After(std::chrono::seconds(20)); }
Deadline Now() { return Deadline::min(); }

Buffer Message(size_t num_bytes, int fill = 0) {
  Buffer message = Buffer::Allocate(num_bytes).value();
  std::memset(message.bytes().data(), fill, num_bytes);
  return message;
}

int FillOf(const Buffer& message) { return std::to_integer<int>(message.bytes()[message.size() / 2]); }

class ContractTest : public testing::TestWithParam<test::Carrier> {
 protected:
  static EndpointPair Pair(double gigabits = 0, uint64_t max_queued_bytes = uint64_t{64} << 20) {
    return test::Connect(GetParam(), gigabits, max_queued_bytes);
  }
};

TEST_P(ContractTest, MessagesOfAnySizeArriveInOrderBothWays) {
  EndpointPair pair = Pair();
  const size_t sizes[] = {1, 100, 8192, 8193, 70'000, 3'000'000, 5};
  int fill = 0;
  for (const size_t size : sizes) {
    ASSERT_TRUE(pair.first->Post(Message(size, ++fill), Soon()).ok());
    ASSERT_TRUE(pair.second->Post(Message(size, 100 + fill), Soon()).ok());
  }
  fill = 0;
  for (const size_t size : sizes) {
    const Buffer there = pair.second->Receive(kAnySize, Soon()).value();
    const Buffer back = pair.first->Receive(kAnySize, Soon()).value();
    EXPECT_EQ(there.size(), size);
    EXPECT_EQ(FillOf(there), ++fill);
    EXPECT_EQ(FillOf(back), 100 + fill);
  }
}

TEST_P(ContractTest, EveryPostIsCompletedOnceAndCounted) {
  EndpointPair pair = Pair();
  const OperationId first = pair.first->Post(Message(100), Soon()).value();
  const OperationId second = pair.first->Post(Message(50), Soon()).value();
  const Completion completion = pair.first->Wait(Soon()).value();
  EXPECT_EQ(completion.id, first);
  EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(completion.num_bytes, 100U);
  EXPECT_LE(completion.posted, completion.finished);
  EXPECT_EQ(pair.first->Wait(Soon()).value().id, second);
  EXPECT_EQ(pair.first->Poll(), std::nullopt);
  EXPECT_EQ(pair.first->Wait(Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(pair.second->Receive(kAnySize, Soon()).ok());
  EXPECT_TRUE(pair.second->Receive(kAnySize, Soon()).ok());
  EXPECT_EQ(pair.first->counters().sent_bytes, 150U);
  EXPECT_EQ(pair.first->counters().sent_messages, 2U);
  EXPECT_EQ(pair.second->counters().received_bytes, 150U);
  EXPECT_EQ(pair.second->counters().received_messages, 2U);
  EXPECT_EQ(pair.second->counters().sent_bytes, 0U);
}

TEST_P(ContractTest, ASlowLineDoesNotHoldThePoster) {
  EndpointPair pair = Pair(0.001);
  ASSERT_TRUE(pair.first->Post(Message(10'000), Soon()).ok());  // 80 ms on this line
  EXPECT_EQ(pair.first->Poll(), std::nullopt);
  EXPECT_EQ(pair.second->Receive(kAnySize, Now()).status().code(), StatusCode::kTimeout);
  EXPECT_TRUE(pair.second->Receive(kAnySize, Soon()).ok());
}

TEST_P(ContractTest, AFullQueueTakesNothingUntilTheReceiverDoes) {
  EndpointPair pair = Pair(0, 1000);
  ASSERT_TRUE(pair.first->Post(Message(700, 1), Soon()).ok());
  Buffer waiting = Message(400, 2);
  EXPECT_EQ(pair.first->Post(std::move(waiting), Soon()).status().code(), StatusCode::kCapacityExceeded);
  EXPECT_EQ(FillOf(waiting), 2) << "a refused message is still the caller's";  // NOLINT: the contract of Post
  EXPECT_EQ(pair.first->WaitForRoom(400, After(milliseconds(5))).code(), StatusCode::kTimeout);
  EXPECT_TRUE(pair.first->WaitForRoom(300, Now()).ok());
  std::thread poster([&] {
    EXPECT_TRUE(pair.first->WaitForRoom(waiting.size(), Soon()).ok());
    EXPECT_TRUE(pair.first->Post(std::move(waiting), Soon()).ok());
  });
  EXPECT_EQ(FillOf(pair.second->Receive(kAnySize, Soon()).value()), 1);
  EXPECT_EQ(FillOf(pair.second->Receive(kAnySize, Soon()).value()), 2);
  poster.join();
}

TEST_P(ContractTest, ALateMessageIsReportedAndNeverDelivered) {
  EndpointPair pair = Pair(0.001);
  const OperationId late = pair.first->Post(Message(1'000'000), After(milliseconds(5))).value();
  const Completion completion = pair.first->Wait(Soon()).value();
  EXPECT_EQ(completion.id, late);
  EXPECT_EQ(completion.status.code(), StatusCode::kTimeout);
  EXPECT_EQ(pair.second->Receive(kAnySize, After(milliseconds(5))).status().code(), StatusCode::kTimeout);
  EXPECT_EQ(pair.first->counters().sent_bytes, 0U);
}

TEST_P(ContractTest, ATooLargeMessageIsRefusedWithBothSizesAndTheNextOneArrives) {
  EndpointPair pair = Pair();
  ASSERT_TRUE(pair.first->Post(Message(101), Soon()).ok());
  ASSERT_TRUE(pair.first->Post(Message(100), Soon()).ok());
  const Status status = pair.second->Receive(100, Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kCapacityExceeded);
  EXPECT_EQ(status.message(), "a message of 101 bytes where at most 100 are expected");
  EXPECT_EQ(pair.second->Receive(100, Soon()).value().size(), 100U);
  EXPECT_EQ(pair.second->counters().received_bytes, 100U);
}

TEST_P(ContractTest, CancelStopsWhatHasNotArrived) {
  EndpointPair pair = Pair(0.001);
  const OperationId first = pair.first->Post(Message(1'000'000, 1), Soon()).value();
  ASSERT_TRUE(pair.first->Post(Message(100, 2), Soon()).ok());
  EXPECT_TRUE(pair.first->Cancel(first).ok());
  EXPECT_EQ(pair.first->Cancel(first).code(), StatusCode::kNotFound);
  EXPECT_EQ(pair.first->Wait(Soon()).value().status.code(), StatusCode::kCancelled);
  EXPECT_EQ(FillOf(pair.second->Receive(kAnySize, Soon()).value()), 2);
}

TEST_P(ContractTest, CloseFailsWhatIsInFlightAndKeepsWhatHasArrived) {
  EndpointPair pair = Pair(0.001);
  ASSERT_TRUE(pair.first->Post(Message(10, 1), Soon()).ok());
  ASSERT_TRUE(pair.first->Wait(Soon()).value().status.ok());
  ASSERT_TRUE(pair.first->Post(Message(1'000'000, 2), Soon()).ok());
  pair.first->Close();
  pair.first->Close();
  EXPECT_EQ(pair.first->Wait(Soon()).value().status.code(), StatusCode::kTransportClosed);
  EXPECT_EQ(pair.first->Wait(Soon()).status().code(), StatusCode::kTransportClosed);
  EXPECT_EQ(pair.first->Post(Message(1), Soon()).status().code(), StatusCode::kTransportClosed);
  EXPECT_EQ(FillOf(pair.second->Receive(kAnySize, Soon()).value()), 1);
  EXPECT_EQ(pair.second->Receive(kAnySize, Soon()).status().code(), StatusCode::kTransportClosed);
  EXPECT_EQ(pair.second->Post(Message(1), Soon()).status().code(), StatusCode::kTransportClosed);
}

TEST_P(ContractTest, DestroyingOneEndClosesTheOther) {
  EndpointPair pair = Pair();
  pair.first.reset();
  EXPECT_EQ(pair.second->Receive(kAnySize, Soon()).status().code(), StatusCode::kTransportClosed);
}

TEST_P(ContractTest, CloseWakesEveryoneWhoWaits) {
  EndpointPair pair = Pair(0.001, 1000);
  ASSERT_TRUE(pair.first->Post(Message(900'000), Soon()).ok());
  std::vector<std::thread> waiting;
  waiting.emplace_back(
      [&] { EXPECT_EQ(pair.first->WaitForRoom(900'000, Soon()).code(), StatusCode::kTransportClosed); });
  waiting.emplace_back(
      [&] { EXPECT_EQ(pair.first->Wait(Soon()).value().status.code(), StatusCode::kTransportClosed); });
  waiting.emplace_back(
      [&] { EXPECT_EQ(pair.first->Receive(kAnySize, Soon()).status().code(), StatusCode::kTransportClosed); });
  waiting.emplace_back(
      [&] { EXPECT_EQ(pair.second->Receive(kAnySize, Soon()).status().code(), StatusCode::kTransportClosed); });
  std::this_thread::sleep_for(milliseconds(20));
  const auto start = Clock::now();
  pair.second->Close();
  for (std::thread& thread : waiting) {
    thread.join();
  }
  EXPECT_LT(Seconds(Clock::now() - start).count(), 5.0);
}

TEST_P(ContractTest, ManyThreadsOnBothEnds) {
  constexpr int kNumMessages = 400;
  EndpointPair pair = Pair(1.0, 20'000);
  const auto send = [](Endpoint& from) {
    for (int i = 0; i < kNumMessages; ++i) {
      ASSERT_TRUE(from.WaitForRoom(1000, Soon()).ok());
      ASSERT_TRUE(from.Post(Message(1000, i % 251), Soon()).ok());
      if (i % 7 == 0) {
        from.Poll();
      }
    }
  };
  const auto receive = [](Endpoint& at) {
    for (int i = 0; i < kNumMessages; ++i) {
      const Result<Buffer> message = at.Receive(kAnySize, Soon());
      ASSERT_TRUE(message.ok()) << message.status().message();
      ASSERT_EQ(FillOf(*message), i % 251);
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { send(*pair.first); });
  threads.emplace_back([&] { send(*pair.second); });
  threads.emplace_back([&] { receive(*pair.first); });
  threads.emplace_back([&] { receive(*pair.second); });
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto* end : {&pair.first, &pair.second}) {
    while ((*end)->Wait(Soon()).ok()) {  // until nothing is in flight
    }
    EXPECT_EQ((*end)->counters().sent_bytes, 1000U * kNumMessages);
    EXPECT_EQ((*end)->counters().received_bytes, 1000U * kNumMessages);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ContractTest, testing::ValuesIn(test::Carriers()),
                         [](const auto& suite) { return test::CarrierName(suite.param); });

}  // namespace
}  // namespace kvant::transport
