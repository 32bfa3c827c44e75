#include "transport/timed_queue.h"

#include <gtest/gtest.h>

namespace kvant::transport {
namespace {

using std::chrono::nanoseconds;

const Clock::time_point kStart{std::chrono::seconds(1000)};
Clock::time_point At(int64_t ns) { return kStart + nanoseconds(ns); }
Buffer Message(size_t num_bytes) { return Buffer::Allocate(num_bytes).value(); }

// One byte takes one nanosecond: sizes are times.
class TimedQueueTest : public testing::Test {
 protected:
  OperationId Push(size_t num_bytes, int64_t now, Deadline deadline = Deadline::max()) {
    return queue_.Push(Message(num_bytes), At(now), deadline);
  }
  void ExpectCompletion(OperationId id, StatusCode code, int64_t finished) {
    ASSERT_TRUE(queue_.has_completion());
    const Completion completion = queue_.TakeCompletion();
    EXPECT_EQ(completion.id, id);
    EXPECT_EQ(completion.status.code(), code);
    EXPECT_EQ(completion.finished, At(finished));
  }
  TimedQueue queue_{1.0, 1000};
};

TEST_F(TimedQueueTest, MessagesPassOneAfterTheOther) {
  const OperationId first = Push(100, 0);
  const OperationId second = Push(200, 10);
  EXPECT_EQ(queue_.NextEvent(), At(100));
  queue_.Advance(At(99));
  EXPECT_FALSE(queue_.has_arrived());
  queue_.Advance(At(100));
  ASSERT_TRUE(queue_.has_arrived());
  EXPECT_EQ(queue_.TakeArrived().size(), 100U);
  EXPECT_EQ(queue_.NextEvent(), At(300));
  queue_.Advance(At(5000));
  EXPECT_EQ(queue_.TakeArrived().size(), 200U);
  ExpectCompletion(first, StatusCode::kOk, 100);
  ExpectCompletion(second, StatusCode::kOk, 300);
  EXPECT_EQ(queue_.delivered_bytes(), 300U);
  EXPECT_EQ(queue_.delivered_messages(), 2U);
  EXPECT_TRUE(queue_.is_idle());
}

TEST_F(TimedQueueTest, AnIdleLineGivesNoCredit) {
  Push(100, 0);
  queue_.Advance(At(100));
  Push(100, 500);
  EXPECT_EQ(queue_.NextEvent(), At(600));
}

TEST_F(TimedQueueTest, ALateMessageFailsAtItsDeadlineAndFreesTheLine) {
  const OperationId late = Push(100, 0, At(60));
  const OperationId next = Push(50, 0);
  queue_.Advance(At(200));
  ExpectCompletion(late, StatusCode::kTimeout, 60);
  ExpectCompletion(next, StatusCode::kOk, 110);
  EXPECT_EQ(queue_.delivered_bytes(), 50U);
}

TEST_F(TimedQueueTest, AWaitingMessageExpiresWithoutUsingTheLine) {
  const OperationId first = Push(100, 0);
  const OperationId waiting = Push(10, 0, At(40));
  const OperationId last = Push(20, 0);
  EXPECT_EQ(queue_.NextEvent(), At(40));
  queue_.Advance(At(50));
  ExpectCompletion(waiting, StatusCode::kTimeout, 40);
  queue_.Advance(At(120));
  ExpectCompletion(first, StatusCode::kOk, 100);
  ExpectCompletion(last, StatusCode::kOk, 120);
}

TEST_F(TimedQueueTest, CancelFreesTheLineFromThenOn) {
  const OperationId first = Push(100, 0);
  const OperationId second = Push(100, 0);
  EXPECT_TRUE(queue_.Cancel(first, At(30)));
  EXPECT_FALSE(queue_.Cancel(first, At(30)));
  EXPECT_EQ(queue_.NextEvent(), At(130));
  EXPECT_TRUE(queue_.Cancel(second, At(30)));
  ExpectCompletion(first, StatusCode::kCancelled, 30);
  ExpectCompletion(second, StatusCode::kCancelled, 30);
  EXPECT_EQ(queue_.NextEvent(), std::nullopt);
}

TEST_F(TimedQueueTest, RoomIsWhatIsNotYetTaken) {
  EXPECT_TRUE(queue_.HasRoom(5000)) << "a message larger than the queue passes alone";
  Push(600, 0);
  EXPECT_TRUE(queue_.HasRoom(400));
  EXPECT_FALSE(queue_.HasRoom(401));
  queue_.Advance(At(600));
  EXPECT_FALSE(queue_.HasRoom(401)) << "arrived, not taken";
  queue_.TakeArrived();
  EXPECT_TRUE(queue_.HasRoom(1000));
  Push(5000, 600);
  EXPECT_FALSE(queue_.HasRoom(1));
  queue_.CutOff(At(700));
  EXPECT_TRUE(queue_.HasRoom(1000));
}

TEST_F(TimedQueueTest, CutOffFailsWhatIsInFlightAndKeepsWhatArrived) {
  const OperationId first = Push(10, 0);
  const OperationId second = Push(10, 0);
  queue_.Advance(At(10));
  queue_.CutOff(At(15));
  ExpectCompletion(first, StatusCode::kOk, 10);
  ExpectCompletion(second, StatusCode::kTransportClosed, 15);
  EXPECT_TRUE(queue_.has_arrived());
  queue_.DropArrived();
  EXPECT_FALSE(queue_.has_arrived());
  EXPECT_TRUE(queue_.HasRoom(1000));
}

TEST(TimedQueueUnlimitedTest, EverythingIsDueAtOnce) {
  TimedQueue queue(0.0, 1000);
  queue.Push(Message(10), At(0), Deadline::max());
  queue.Push(Message(20), At(0), Deadline::max());
  queue.Advance(At(0));
  EXPECT_EQ(queue.TakeArrived().size(), 10U);
  EXPECT_EQ(queue.TakeArrived().size(), 20U);
}

}  // namespace
}  // namespace kvant::transport
