#include "kvant/transport/loopback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

namespace kvant::transport {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr uint64_t kAnySize = uint64_t{1} << 40;

Deadline Soon() { return After(std::chrono::seconds(20)); }
Deadline Now() { return Deadline::min(); }

Buffer Message(size_t num_bytes, int fill = 0) {
  Buffer message = Buffer::Allocate(num_bytes).value();
  std::memset(message.bytes().data(), fill, num_bytes);
  return message;
}

int FillOf(const Buffer& message) { return std::to_integer<int>(message.bytes()[message.size() / 2]); }

LoopbackPair Pair(double gigabits = 0, uint64_t max_queued_bytes = uint64_t{64} << 20) {
  return MakeLoopback({gigabits, max_queued_bytes}).value();
}

TEST(LoopbackTest, MessagesArriveInOrderBothWaysWithoutACopy) {
  LoopbackPair pair = Pair();
  Buffer message = Message(100, 1);
  const std::byte* where = message.bytes().data();
  ASSERT_TRUE(pair.first->Post(std::move(message), Soon()).ok());
  ASSERT_TRUE(pair.first->Post(Message(200, 2), Soon()).ok());
  ASSERT_TRUE(pair.second->Post(Message(300, 3), Soon()).ok());
  const Buffer first = pair.second->Receive(kAnySize, Soon()).value();
  EXPECT_EQ(first.bytes().data(), where);
  EXPECT_EQ(FillOf(first), 1);
  EXPECT_EQ(FillOf(pair.second->Receive(kAnySize, Soon()).value()), 2);
  EXPECT_EQ(FillOf(pair.first->Receive(kAnySize, Soon()).value()), 3);
}

TEST(LoopbackTest, EveryPostIsCompletedOnceAndCounted) {
  LoopbackPair pair = Pair();
  const OperationId first = pair.first->Post(Message(100), Soon()).value();
  const OperationId second = pair.first->Post(Message(50), Soon()).value();
  const Completion completion = pair.first->Wait(Soon()).value();
  EXPECT_EQ(completion.id, first);
  EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(completion.num_bytes, 100U);
  EXPECT_LE(completion.posted, completion.finished);
  EXPECT_EQ(pair.first->Poll().value().id, second);
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

TEST(LoopbackTest, TheRateIsKeptWithinTwoPercent) {
  constexpr double kGigabits = 2.0;
  constexpr size_t kMessageBytes = 1 << 20;
  constexpr int kNumMessages = 30;
  LoopbackPair pair = Pair(kGigabits);
  std::vector<Buffer> messages;
  for (int i = 0; i < kNumMessages; ++i) {
    messages.push_back(Message(kMessageBytes));
  }
  const auto start = Clock::now();
  for (Buffer& message : messages) {
    ASSERT_TRUE(pair.first->Post(std::move(message), Soon()).ok());
  }
  for (int i = 0; i < kNumMessages; ++i) {
    ASSERT_TRUE(pair.second->Receive(kAnySize, Soon()).ok());
  }
  const double expected = 8.0 * kMessageBytes * kNumMessages / (kGigabits * 1e9);
  EXPECT_GE(Seconds(Clock::now() - start).count(), expected) << "never faster than the line, whoever measures";
  const Clock::time_point posted = pair.first->Wait(Soon()).value().posted;
  Clock::time_point finished;
  while (const auto completion = pair.first->Poll()) {
    finished = completion->finished;
  }
  EXPECT_NEAR(Seconds(finished - posted).count(), expected, 0.02 * expected);
}

TEST(LoopbackTest, ASlowLineDoesNotHoldThePoster) {
  LoopbackPair pair = Pair(0.001);
  ASSERT_TRUE(pair.first->Post(Message(10'000), Soon()).ok());  // 80 ms on this line
  EXPECT_EQ(pair.first->Poll(), std::nullopt);
  EXPECT_EQ(pair.second->Receive(kAnySize, Now()).status().code(), StatusCode::kTimeout);
  EXPECT_TRUE(pair.second->Receive(kAnySize, Soon()).ok());
}

TEST(LoopbackTest, AFullQueueTakesNothingUntilTheReceiverDoes) {
  LoopbackPair pair = Pair(0, 1000);
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

TEST(LoopbackTest, ALateMessageIsReportedAndNeverDelivered) {
  LoopbackPair pair = Pair(0.001);
  const OperationId late = pair.first->Post(Message(1'000'000), After(milliseconds(5))).value();
  const Completion completion = pair.first->Wait(Soon()).value();
  EXPECT_EQ(completion.id, late);
  EXPECT_EQ(completion.status.code(), StatusCode::kTimeout);
  EXPECT_EQ(pair.second->Receive(kAnySize, After(milliseconds(5))).status().code(), StatusCode::kTimeout);
  EXPECT_EQ(pair.first->counters().sent_bytes, 0U);
}

TEST(LoopbackTest, ATooLargeMessageIsRefusedWithBothSizesAndTheNextOneArrives) {
  LoopbackPair pair = Pair();
  ASSERT_TRUE(pair.first->Post(Message(101), Soon()).ok());
  ASSERT_TRUE(pair.first->Post(Message(100), Soon()).ok());
  const Status status = pair.second->Receive(100, Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kCapacityExceeded);
  EXPECT_EQ(status.message(), "a message of 101 bytes where at most 100 are expected");
  EXPECT_EQ(pair.second->Receive(100, Soon()).value().size(), 100U);
  EXPECT_EQ(pair.second->counters().received_bytes, 100U);
}

TEST(LoopbackTest, CancelStopsWhatHasNotArrived) {
  LoopbackPair pair = Pair(0.001);
  const OperationId first = pair.first->Post(Message(1'000'000, 1), Soon()).value();
  ASSERT_TRUE(pair.first->Post(Message(100, 2), Soon()).ok());
  EXPECT_TRUE(pair.first->Cancel(first).ok());
  EXPECT_EQ(pair.first->Cancel(first).code(), StatusCode::kNotFound);
  EXPECT_EQ(pair.first->Wait(Soon()).value().status.code(), StatusCode::kCancelled);
  EXPECT_EQ(FillOf(pair.second->Receive(kAnySize, Soon()).value()), 2);
}

TEST(LoopbackTest, CloseFailsWhatIsInFlightAndKeepsWhatHasArrived) {
  LoopbackPair pair = Pair(0.001);
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

TEST(LoopbackTest, DestroyingOneEndClosesTheOther) {
  LoopbackPair pair = Pair();
  pair.first.reset();
  EXPECT_EQ(pair.second->Receive(kAnySize, Soon()).status().code(), StatusCode::kTransportClosed);
}

TEST(LoopbackTest, CloseWakesEveryoneWhoWaits) {
  LoopbackPair pair = Pair(0.001, 1000);
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

TEST(LoopbackTest, ManyThreadsOnBothEnds) {
  constexpr int kNumMessages = 400;
  LoopbackPair pair = Pair(1.0, 20'000);
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
    EXPECT_EQ((*end)->counters().sent_bytes, 1000U * kNumMessages);
    EXPECT_EQ((*end)->counters().received_bytes, 1000U * kNumMessages);
  }
}

TEST(LoopbackTest, OptionsOutOfRangeAreNamed) {
  EXPECT_NE(MakeLoopback({-1.0}).status().message().find("gigabits_per_second"), std::string::npos);
  EXPECT_FALSE(MakeLoopback({std::nan("")}).ok());
  EXPECT_FALSE(MakeLoopback({std::numeric_limits<double>::infinity()}).ok());
  EXPECT_NE(MakeLoopback({0, 0}).status().message().find("max_queued_bytes"), std::string::npos);
}

}  // namespace
}  // namespace kvant::transport
