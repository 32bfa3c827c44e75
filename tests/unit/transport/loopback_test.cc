#include "kvant/transport/loopback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace kvant::transport {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr uint64_t kAnySize = uint64_t{1} << 40;

Deadline Soon() { return After(std::chrono::seconds(20)); }

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

TEST(LoopbackTest, OptionsOutOfRangeAreNamed) {
  EXPECT_NE(MakeLoopback({-1.0}).status().message().find("gigabits_per_second"), std::string::npos);
  EXPECT_FALSE(MakeLoopback({std::nan("")}).ok());
  EXPECT_FALSE(MakeLoopback({std::numeric_limits<double>::infinity()}).ok());
  EXPECT_NE(MakeLoopback({0, 0}).status().message().find("max_queued_bytes"), std::string::npos);
}

}  // namespace
}  // namespace kvant::transport
